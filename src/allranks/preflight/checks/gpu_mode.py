"""Persistence mode, compute mode and MIG are set alike on all GPUs, and no GPU refuses processes.

nvidia-smi(1): without persistence mode (or nvidia-persistenced) each start sets the GPU up anew; Exclusive_Process lets
one process in, Prohibited none; a GPU in MIG mode is split. Azure NHC demands persistence mode; here only a
difference is told.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from allranks.findings import Finding
from allranks.text import join_names, plural

from .. import smi
from ..compare import Nodes, by_value, differences, parts, place, remote
from ..host import Host, Record, Request

ID = "gpu_mode"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
FIELDS = {"persistence": "persistence_mode", "compute": "compute_mode", "mig": "mig.mode.current"}
WHAT = {
    "persistence": ("persistence mode", "-pm", {"Enabled": "1", "Disabled": "0"}),
    "compute": ("compute mode", "-c", {"Default": "DEFAULT", "Exclusive_Process": "EXCLUSIVE_PROCESS"}),
    "mig": ("MIG mode", "-mig", {"Enabled": "1", "Disabled": "0"}),
}
PROHIBITED = "Prohibited"


def collect(host: Host) -> Optional[Record]:
    """{"persistence", "compute", "mig": {value: [GPU indices]}}."""
    answer = smi.query(host, list(FIELDS.values()))
    if answer is None:
        return None
    modes: Dict[str, Any] = {}
    for key, field in FIELDS.items():
        values: Dict[str, List[int]] = {}
        for row in answer.rows:
            if smi.value_of(row.get(field)):
                values.setdefault(smi.value_of(row.get(field)), []).append(int(row["index"]))
        modes[key] = values
    return modes


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A failure: GPUs that take no process. Warnings: nodes or GPUs that differ."""
    collected = parts(facts_by_node, ID)
    findings = []
    for node, one in collected.items():
        gpus = (one.get("compute") or {}).get(PROHIBITED)
        if gpus:
            message = f"{smi.which_gpus([{'gpu': g} for g in gpus])} of {node} "
            message += f"{plural(len(gpus), 'takes', 'take')} no process (compute mode Prohibited)"
            remedy = remote(node, "sudo", "nvidia-smi", "-c", "DEFAULT")
            findings.append(Finding("cuda-device-unavailable", "fail", message, remedy, place([node], gpu=gpus[0])))
    for key, (what, option, names_of) in WHAT.items():
        findings += _differ(what, option, names_of, {n: v.get(key) or {} for n, v in collected.items() if v.get(key)})
    return findings


def _differ(what: str, option: str, words: Mapping[str, str], modes: Mapping[str, Record]) -> List[Finding]:
    findings = []
    values = {n: " and ".join(sorted(v)) for n, v in modes.items() if PROHIBITED not in v}
    for d in differences(what, values):
        word = words.get(str(d.norm)) or next(iter(words.values()))
        remedy = f"set it alike on every node: {remote(d.nodes[0], 'sudo', 'nvidia-smi', option, word)}"
        findings.append(Finding(ID, "warn", d.message, remedy, place(d.nodes)))
    reported = {n for f in findings for n in (f.where.nodes or (f.where.node,))}
    mixed = {n: _modes_text(v) for n, v in modes.items() if n in values and n not in reported and len(v) > 1}
    for shown, nodes in by_value(mixed).items():
        most = max(modes[nodes[0]].items(), key=lambda item: len(item[1]))[0]
        command = remote(nodes[0], "sudo", "nvidia-smi", option, words.get(str(most)) or next(iter(words.values())))
        message = f"the {what} differs among the GPUs of {join_names(nodes)}: {shown}"
        findings.append(Finding(ID, "warn", message, f"set it alike on all GPUs: {command}", place(nodes)))
    return findings


def _modes_text(modes: Record) -> str:
    return "; ".join(f"{mode} on {smi.which_gpus([{'gpu': g} for g in gpus])}" for mode, gpus in modes.items())
