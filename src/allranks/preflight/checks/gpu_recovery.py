"""No GPU asks to be reset, drained or rebooted.

`gpu_recovery_action` of nvidia-smi: None, Reset, Reboot, Drain P2P, Drain and Reset, in newer drivers more (NVML's
nvmlDeviceGpuRecoveryAction_t). Older ones do not know it. NVIDIA's resiliency extension refuses all but None.
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from allranks.text import group

from .. import smi
from ..compare import Findings, Nodes, collected, fail_if
from ..host import Host
from ..typed_facts import Request

ID = "gpu_recovery"
GROUP = "gpu"
LEVEL = "full"
SECONDS = 190.0
FIELD = "gpu_recovery_action"
IN_FULL = re.compile(r"^GPU ([0-9A-Fa-f:.]+)$|^ +GPU Recovery Action +: (.+)$", re.MULTILINE)
DRAIN = "Drain P2P"


def collect(host: Host) -> Optional[List[smi.GpuState]]:
    """List the GPUs that ask for something; None where the driver does not know of it."""
    answer = smi.query(host, [FIELD])
    if answer is None:
        return None
    actions = {row["pci"]: smi.value_of(row.get(FIELD)) for row in answer.rows}
    if not any(actions.values()):
        actions.update(_in_full(smi.nvidia_smi(host, "-q").out))
    gpus = [smi.GpuState(*smi.gpu_of(row), actions[row["pci"]][:50]) for row in answer.rows if actions[row["pci"]]]
    if not gpus:
        return None
    return [gpu for gpu in gpus if gpu.state != "None"]


def _in_full(text: str) -> Dict[str, str]:
    """By PCI address, out of nvidia-smi -q: some drivers have it there alone."""
    actions: Dict[str, str] = {}
    pci = ""
    for match in IN_FULL.finditer(text):
        if match.group(1):
            pci = smi.short(match.group(1))
        else:
            actions[pci] = smi.value_of(match.group(2))
    return actions


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail a GPU that asks for recovery; warn of one that may go on but should not talk to its peers."""
    for node, asking in collected(facts_by_node, ID, List[smi.GpuState]).items():
        for action, gpus in group(asking, lambda gpu: gpu.state).items():
            message = f"{smi.gpus_of(node, gpus, 'needs', 'need')} recovery: {action}"
            remedy = f"reboot {node} or leave it out. Look: {smi.driver_log(node, 'xid')}"
            if "Reset" in action and "Bus" not in action:
                remedy = f"end what uses it, then {smi.reset(node, gpus)}, or leave {node} out"
            elif action == DRAIN:
                remedy = f"leave {node} out, let no job use it together with other GPUs, and reset it when idle"
            evidence = [f"{FIELD}: {action}"]
            fails = action != DRAIN
            yield fail_if(fails, "cuda-device-unavailable", node, message, remedy, evidence, gpu=gpus[0].gpu)
