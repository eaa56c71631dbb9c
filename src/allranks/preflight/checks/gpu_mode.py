"""Persistence mode, compute mode and MIG are set alike on all GPUs, and no GPU refuses processes.

nvidia-smi(1): without persistence mode (or nvidia-persistenced) each start sets the GPU up again. Exclusive_Process
lets one process in, Prohibited none. A GPU in MIG mode is split. Azure NHC demands persistence mode. Here only a
difference counts.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Set

from allranks.protocol.records import NamedTuple
from allranks.text import join_names, plural

from .. import smi
from ..compare import Findings, Nodes, by_value, collected, differences, fail, nodes_of, remote, values_of, warn
from ..host import Host
from ..typed_facts import Request

ID = "gpu_mode"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 130.0
PROHIBITED = "Prohibited"
Modes = Dict[str, List[int]]  # the indices of the GPUs by their mode


class GpuMode(NamedTuple):
    """A mode: its field, its name, nvidia-smi's option and how that names the values, the usual one first."""

    field: str
    what: str
    option: str
    words: Dict[str, str]


KINDS = {
    "persistence": GpuMode("persistence_mode", "persistence mode", "-pm", {"Enabled": "1", "Disabled": "0"}),
    "compute": GpuMode(
        "compute_mode", "compute mode", "-c", {"Default": "DEFAULT", "Exclusive_Process": "EXCLUSIVE_PROCESS"}
    ),
    "mig": GpuMode("mig.mode.current", "MIG mode", "-mig", {"Enabled": "1", "Disabled": "0"}),
}


def collect(host: Host) -> Optional[Dict[str, Modes]]:
    """By kind."""
    answer = smi.query(host, [kind.field for kind in KINDS.values()])
    if answer is None:
        return None
    modes: Dict[str, Modes] = {}
    for name, kind in KINDS.items():
        modes[name] = {}
        for row in answer.rows:
            value = smi.value_of(row.get(kind.field))
            if value:
                modes[name].setdefault(value, []).append(int(row["index"]))
    return modes


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail GPUs that take no process; warn of nodes or GPUs that differ."""
    nodes = collected(facts_by_node, ID, Dict[str, Modes])
    for node, one in nodes.items():
        gpus = one.get("compute", {}).get(PROHIBITED)
        if gpus:
            take = plural(len(gpus), "takes", "take")
            message = f"{_which(gpus)} of {node} {take} no process (compute mode Prohibited)"
            remedy = remote(node, "sudo nvidia-smi -c DEFAULT")
            yield fail("cuda-device-unavailable", node, message, remedy, gpu=gpus[0])
    for name, kind in KINDS.items():
        modes = {node: one[name] for node, one in nodes.items() if one.get(name) and PROHIBITED not in one[name]}
        yield from _differ(kind, modes)


def _differ(kind: GpuMode, modes: Dict[str, Modes]) -> Findings:
    reported: Set[str] = set()
    for odd in differences(kind.what, values_of(modes, lambda one: " and ".join(sorted(one)))):
        remedy = f"set it alike on every node: {_set(odd.nodes[0], kind, odd.norm)}"
        finding = warn(ID, odd.nodes, odd.message, remedy)
        reported.update(nodes_of(finding.where))
        yield finding
    mixed = {node: _modes_text(one) for node, one in modes.items() if node not in reported and len(one) > 1}
    for shown, nodes in by_value(mixed).items():
        of_most = modes[nodes[0]]
        most = max(of_most, key=lambda mode: len(of_most[mode]))
        message = f"the {kind.what} differs among the GPUs of {join_names(nodes)}: {shown}"
        yield warn(ID, nodes, message, f"set it alike on all GPUs: {_set(nodes[0], kind, most)}")


def _set(node: str, kind: GpuMode, value: Optional[str]) -> str:
    usual = next(iter(kind.words.values()))
    return remote(node, "sudo nvidia-smi", kind.option, kind.words.get(value or "", usual))


def _modes_text(modes: Modes) -> str:
    return ", ".join(f"{mode} on {_which(gpus)}" for mode, gpus in modes.items())


def _which(indices: List[int]) -> str:
    return smi.which_gpus([smi.Gpu(index) for index in indices])
