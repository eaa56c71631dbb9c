"""All GPUs are of one model with the same memory.

The slowest GPU sets the pace of all, and the smallest memory the batch.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from allranks.protocol.records import NamedTuple

from .. import smi
from ..compare import Findings, Nodes, advise, by_value, collected, differences, values_of, warn, who
from ..host import Host
from ..typed_facts import Request

ID = "gpu_model"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
TOLERANCE = 0.05  # firmware and ECC keep a little of the memory


class Models(NamedTuple):
    """By model, how many GPUs and the MiB of the smallest."""

    vendor: str
    models: Dict[str, Tuple[int, int]]


def collect(host: Host) -> Optional[Models]:
    """None without GPUs, or without a tool that tells."""
    answer = smi.query(host, ["name", "memory.total"])
    if answer is not None:
        return _counted("nvidia", [(smi.value_of(r["name"]), smi.number(r["memory.total"])) for r in answer.rows])
    gpus = smi.amd_smi(host, "static", "-a", "-v")
    if gpus is not None:
        return _counted(
            "amd",
            [(smi.text_at(gpu, "asic", "market_name"), smi.integer(smi.at(gpu, "vram", "size"))) for gpu in gpus],
        )
    return None


def _counted(vendor: str, gpus: Sequence[Tuple[str, Optional[float]]]) -> Optional[Models]:
    models: Dict[str, Tuple[int, int]] = {}
    for name, memory in gpus:
        if name:
            size = int(memory or 0)
            count, least = models.get(name, (0, size))
            models[name] = (count + 1, min(least, size))
    if not models:
        return None
    return Models(vendor, models)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings: nodes with different models or memory, nodes with several models."""
    nodes = collected(facts_by_node, ID, Models)
    usual = _sizes(nodes)
    kinds = values_of(
        nodes, lambda one: [_model_text(name, size, usual[name]) for name, (_, size) in sorted(one.models.items())]
    )
    odd = differences("GPUs", values_of(kinds, lambda kind: " and ".join(kind)))
    for one in odd:
        advice = "use equal GPUs, or expect the slowest to set the pace"
        yield warn(ID, one.nodes, one.message, _advise(advice, nodes, one.nodes[0]))
    if odd:
        return
    for shown, names in by_value({node: ", ".join(kind) for node, kind in kinds.items() if len(kind) > 1}).items():
        message = f"{who(names)} GPUs of several models: {shown}"
        advice = "keep to one with --env CUDA_VISIBLE_DEVICES=…"
        yield warn(ID, names, message, _advise(advice, nodes, names[0]))


def _sizes(nodes: Mapping[str, Models]) -> Dict[str, List[int]]:
    sizes_by_model: Dict[str, List[int]] = {}
    every = ((name, size) for one in nodes.values() for name, (_, size) in one.models.items())
    for name, memory in sorted(every, reverse=True):
        sizes = sizes_by_model.setdefault(name, [])
        if memory and not any(memory >= (1 - TOLERANCE) * size for size in sizes):
            sizes.append(memory)
    return sizes_by_model


def _model_text(name: str, memory: int, usual: List[int]) -> str:
    """`NVIDIA H100 80GB HBM3 (80 GB)`, with the size that stands for those near it."""
    size = next((size for size in usual if memory >= (1 - TOLERANCE) * size), 0)
    return f"{name} ({size / 1024:.0f} GB)" if size else name


def _advise(advice: str, nodes: Mapping[str, Models], node: str) -> str:
    return advise(advice, node, "amd-smi list" if nodes[node].vendor == "amd" else "nvidia-smi -L")
