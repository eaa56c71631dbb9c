"""No GPU asks to be reset, drained or rebooted.

`gpu_recovery_action` of nvidia-smi: None, Reset, Reboot, Drain P2P, Drain and Reset, in newer drivers more (NVML's
nvmlDeviceGpuRecoveryAction_t); older ones do not know it. NVIDIA's resiliency extension refuses all but None.
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from allranks.findings import Finding, Status
from allranks.text import plural

from .. import smi
from ..compare import Nodes, part, place, remote
from ..host import Host, Record, Request

ID = "gpu_recovery"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
FIELD = "gpu_recovery_action"
IN_FULL = re.compile(r"^GPU ([0-9A-Fa-f:.]+)$|^ +GPU Recovery Action +: (.+)$", re.MULTILINE)
NOTHING = ("", "None")
DRAIN = "Drain P2P"


def collect(host: Host) -> Optional[Record]:
    """{"gpus": how many tell, "asking": [{"gpu", "pci", "action"}]}; None where the driver does not know of it."""
    answer = smi.query(host, [FIELD])
    if answer is None:
        return None
    actions = {row["pci"]: smi.value_of(row.get(FIELD)) for row in answer.rows}
    if not any(actions.values()):
        actions.update(_in_full(smi.nvidia_smi(host, "-q").out))
    rows = [row for row in answer.rows if actions.get(row["pci"])]
    asking = [
        {**smi.gpu_of(row), "action": actions[row["pci"]][:50]} for row in rows if actions[row["pci"]] not in NOTHING
    ]
    return {"gpus": len(rows), "asking": asking} if rows else None


def _in_full(text: str) -> Dict[str, str]:
    """By PCI address, out of nvidia-smi -q: some drivers have it there alone."""
    actions: Dict[str, str] = {}
    pci = ""
    for match in IN_FULL.finditer(text):
        if match.group(1):
            pci = smi.short(match.group(1))
        else:
            actions[pci] = smi.value_of(match.group(2).strip())
    return actions


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A failure; a warning for a GPU that may go on but should not talk to its peers."""
    findings = []
    for node, facts in facts_by_node.items():
        for action, gpus in smi.group_by(part(facts, ID).get("asking") or [], "action").items():
            status: Status = "warn" if action == DRAIN else "fail"
            message = f"{smi.which_gpus(gpus)} of {node} {plural(len(gpus), 'needs', 'need')} recovery: {action}"
            findings.append(
                Finding(
                    "cuda-device-unavailable",
                    status,
                    message,
                    _remedy(node, str(action), gpus),
                    place([node], gpu=gpus[0].get("gpu")),
                    (f"{FIELD}: {action}",),
                )
            )
    return findings


def _remedy(node: str, action: str, gpus: List[Record]) -> str:
    if "Reset" in action and "Bus" not in action:
        indices = ",".join(str(gpu.get("gpu")) for gpu in gpus)
        return f"end what uses it, then {remote(node, 'sudo', 'nvidia-smi', '-r', '-i', indices)}, or leave {node} out"
    if action == DRAIN:
        return f"let no job use it together with other GPUs; leave {node} out, or reset it when idle"
    return f"reboot {node} or leave it out; why: ssh {node} 'sudo dmesg -T | grep -i xid'"
