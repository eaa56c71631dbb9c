"""All GPUs are of one model with the same memory, under one version of the driver.

The slowest GPU sets the pace of all, and the smallest memory the batch. imbue's host-health-checks and GCP's
configcheck compare drivers. Other versions side by side usually work. NCCL then chooses by what each driver can.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from allranks.protocol.records import NamedTuple

from .. import smi
from ..compare import Findings, Nodes, advise, by_value, collected, differences, having, values_of, warn, who
from ..host import Host
from ..typed_facts import Request

ID = "gpu_model"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
TOLERANCE = 0.05  # firmware and ECC keep a little of the memory


class Models(NamedTuple):
    """By model, how many GPUs and the MiB of the smallest; the version of the driver."""

    vendor: str
    models: Dict[str, Tuple[int, int]]
    driver: str = ""


def collect(host: Host) -> Optional[Models]:
    """None without GPUs, or without a tool that tells."""
    answer = smi.query(host, ["name", "memory.total", "driver_version"])
    if answer is not None:
        rows = [(smi.value_of(row["name"]), smi.number(row["memory.total"])) for row in answer.rows]
        driver = next((smi.value_of(row["driver_version"]) for row in answer.rows), "")
        return Models("nvidia", _counted(rows), driver[:50])
    gpus = smi.amd_smi(host, "static", "-a", "-v", "-d")
    if gpus is None:
        return None
    rows = [(smi.text_at(gpu, "asic", "market_name"), smi.integer(smi.at(gpu, "vram", "size"))) for gpu in gpus]
    driver = next((smi.text_at(gpu, "driver", "version") for gpu in gpus), "")
    return Models("amd", _counted(rows), driver[:50])


def _counted(gpus: Sequence[Tuple[str, Optional[float]]]) -> Dict[str, Tuple[int, int]]:
    models: Dict[str, Tuple[int, int]] = {}
    for name, memory in gpus:
        if name:
            size = int(memory or 0)
            count, least = models.get(name, (0, size))
            models[name] = (count + 1, min(least, size))
    return models


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings: nodes with different models, memory or drivers, nodes with several models."""
    nodes = collected(facts_by_node, ID, Models)
    yield from _drivers(nodes)
    usual = _sizes(nodes)
    models = {node: sorted(one.models.items()) for node, one in nodes.items() if one.models}
    kinds = values_of(models, lambda one: [_model_text(name, size, usual[name]) for name, (_, size) in one])
    odd = differences("GPUs", values_of(kinds, lambda kind: " and ".join(kind)))
    for one in odd:
        advice = "use equal GPUs, or expect the slowest to set the pace"
        node = one.nodes[0]
        yield warn(ID, one.nodes, one.message, advise(advice, node, smi.listing(nodes[node].vendor)))
    if odd:
        return
    for shown, names in by_value({node: ", ".join(kind) for node, kind in kinds.items() if len(kind) > 1}).items():
        message = f"{who(names)} GPUs of several models: {shown}"
        advice = "keep to one with --env CUDA_VISIBLE_DEVICES=…"
        yield warn(ID, names, message, advise(advice, names[0], smi.listing(nodes[names[0]].vendor)))


def _drivers(nodes: Mapping[str, Models]) -> Findings:
    for one in differences("driver", having(nodes, lambda one: one.driver)):
        advice = "install the same driver on every node"
        if one.norm:
            advice += f" ({one.norm})"
        show = smi.by_vendor(nodes[one.nodes[0]].vendor, "nvidia-smi", "amd-smi static -d")
        yield warn("driver-version-mismatch", one.nodes, one.message, advise(advice, one.nodes[0], show))


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
