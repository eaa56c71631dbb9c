"""All GPUs are of one model with the same memory.

The slowest GPU sets the pace of all, and the smallest memory the batch.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Tuple

from allranks.findings import Finding
from allranks.text import join_names, plural

from .. import smi
from ..compare import Nodes, by_value, differences, part, parts, place, remote, warn
from ..host import Host, Record, Request

ID = "gpu_model"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
TOLERANCE = 0.05  # firmware and ECC keep a little of the memory


def collect(host: Host) -> Optional[Record]:
    """{"vendor", "models": {name: [how many, MiB of the smallest]}}."""
    answer = smi.query(host, ["name", "memory.total"])
    if answer is not None:
        return _counted("nvidia", [(smi.value_of(r["name"]), smi.number(r["memory.total"])) for r in answer.rows])
    gpus = smi.amd_smi(host, "static", "-a", "-v")
    if gpus is not None:
        return _counted(
            "amd",
            [
                (str(part(gpu, "asic").get("market_name") or ""), smi.integer(part(gpu, "vram").get("size")))
                for gpu in gpus
            ],
        )
    cards = smi.rocm_smi(host, "--showproductname", "--showmeminfo", "vram")
    if cards is None:
        return None
    gpus = [card for name, card in cards.items() if name.startswith("card")]
    sizes = [smi.integer(gpu.get("VRAM Total Memory (B)")) or 0 for gpu in gpus]
    return _counted("amd", [(_series(gpu), sizes[i] >> 20) for i, gpu in enumerate(gpus)])


def _series(card: Record) -> str:
    """`Card series` before ROCm 6.0."""
    return str(card.get("Card Series") or card.get("Card series") or "")


def _counted(vendor: str, gpus: List[Tuple[str, Optional[float]]]) -> Optional[Record]:
    models: Dict[str, List[int]] = {}
    for name, memory in gpus:
        if name and name != "N/A":
            count, least = models.get(name, [0, int(memory or 0)])
            models[name] = [count + 1, min(least, int(memory or 0))]
    return {"vendor": vendor, "models": models} if models else None


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings: nodes with different models or memory, nodes with several models."""
    collected = parts(facts_by_node, ID)
    usual = _sizes(collected)
    kinds = {
        n: [_model_text(name, one[1], usual) for name, one in sorted(v["models"].items())] for n, v in collected.items()
    }
    findings = []
    advice = "use equal GPUs, or expect the slowest to set the pace"
    odd = differences("GPUs", {n: " and ".join(v) for n, v in kinds.items()})
    findings += warn(ID, odd, lambda d: f"{advice}; look: {_look(collected, d.nodes[0])}")
    mixed = {n: ", ".join(v) for n, v in kinds.items() if len(v) > 1}
    for shown, nodes in by_value(mixed).items() if not findings else []:
        message = f"{join_names(nodes)} {plural(len(nodes), 'has', 'have')} GPUs of several models: {shown}"
        remedy = f"keep to one with --env CUDA_VISIBLE_DEVICES=…; look: {_look(collected, nodes[0])}"
        findings.append(Finding(ID, "warn", message, remedy, place(nodes)))
    return findings


def _sizes(collected: Nodes) -> Dict[str, List[int]]:
    """By model, sizes of memory that differ by more than a little; the largest first."""
    sizes_by_model: Dict[str, List[int]] = {}
    for name, memory in sorted(
        ((n, one[1]) for v in collected.values() for n, one in v["models"].items()), reverse=True
    ):
        sizes = sizes_by_model.setdefault(name, [])
        if memory and not any(memory >= (1 - TOLERANCE) * size for size in sizes):
            sizes.append(memory)
    return sizes_by_model


def _model_text(name: str, memory: int, usual: Mapping[str, List[int]]) -> str:
    """`NVIDIA H100 80GB HBM3 (80 GB)`, with the size that stands for those near it."""
    size = next((size for size in usual[name] if memory >= (1 - TOLERANCE) * size), 0)
    return f"{name} ({size / 1024:.0f} GB)" if size else name


def _look(collected: Nodes, node: str) -> str:
    return remote(node, *(("amd-smi", "list") if collected[node].get("vendor") == "amd" else ("nvidia-smi", "-L")))
