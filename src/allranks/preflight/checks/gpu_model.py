"""All GPUs are of one model with the same memory.

The slowest GPU sets the pace of all, and the smallest memory the batch.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from allranks.findings import Finding

from .. import smi
from ..compare import Nodes, differences, number, part, place, remote
from ..host import Host

ID = "gpu_model"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0


def collect(host: Host) -> Optional[Dict[str, int]]:
    """{"NVIDIA H100 80GB HBM3 with 80 GB": how many}."""
    answer = smi.query(host, ["name", "memory.total"])
    if answer is not None:
        return _counted([_with(smi.known(r["name"]), smi.number(r["memory.total"]), 1024) for r in answer.rows])
    found = smi.amd_smi(host, "static", "-a", "-v")
    if found is not None:
        pairs = [(part(gpu, "asic").get("market_name"), part(gpu, "vram").get("size")) for gpu in found]
        return _counted([_with(str(name or ""), smi.integer(size), 1024) for name, size in pairs])
    cards = smi.rocm_smi(host, "--showproductname", "--showmeminfo", "vram")
    if cards is None:
        return None
    gpus = [card for name, card in cards.items() if name.startswith("card")]
    return _counted([_with(_series(g), smi.integer(g.get("VRAM Total Memory (B)")), 1 << 30) for g in gpus])


def _series(card: Mapping[str, Any]) -> str:
    """`Card series` before ROCm 6.0."""
    return str(card.get("Card Series") or card.get("Card series") or "")


def _with(name: str, memory: Optional[float], unit: int) -> str:
    """The memory in whole GB: firmware and ECC keep a little of it."""
    if not name or name == "N/A":
        return ""
    return f"{name} with {memory / unit:.0f} GB" if memory else name


def _counted(models: List[str]) -> Optional[Dict[str, int]]:
    return {model: models.count(model) for model in sorted(set(models)) if model} or None


def judge(request: Mapping[str, Any], facts_by_node: Nodes) -> List[Finding]:
    """Warnings: a node with several models, nodes with different ones."""
    looked = {n: part(f, ID) for n, f in facts_by_node.items() if part(f, ID)}
    found = []
    for d in differences("GPUs:", {n: " and ".join(v) for n, v in looked.items()}):
        remedy = f"use equal GPUs, or expect the slowest to set the pace; look: {_look(d.nodes[0])}"
        found.append(Finding(ID, "warn", d.message, remedy, place(d.nodes)))
    said = {n for f in found for n in (f.where.nodes or (f.where.node,))}
    for node, models in looked.items():
        if len(models) > 1 and node not in said:
            shown = ", ".join(f"{count} × {model}" for model, count in models.items())
            message = f"{node} has {number(len(models), 'kind')} of GPUs: {shown}"
            remedy = f"keep to one kind with --env CUDA_VISIBLE_DEVICES=…; look: {_look(node)}"
            found.append(Finding(ID, "warn", message, remedy, place([node])))
    return found


def _look(node: str) -> str:
    return remote(node, "nvidia-smi", "-L")
