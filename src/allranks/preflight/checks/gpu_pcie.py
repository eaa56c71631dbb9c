"""The GPUs use as many PCIe lanes as the others, and no small part of what they can.

Files: current_link_width and max_link_width of the PCI device (Documentation/ABI/testing/sysfs-bus-pci). Width
only: the speed of an idle GPU is low to save power. Boards with x8 slots are no fault where all have them.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from allranks.findings import Finding
from allranks.text import join_names, plural

from .. import smi
from ..compare import Nodes, place, remote
from ..host import Host, Record, Request

ID = "gpu_pcie"
GROUP = "gpu"
LEVEL = "quick"
SECONDS = 5.0
DRIVERS = ("nvidia", "amdgpu")
CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D, other display controllers, processing accelerators
FEW = 4  # times fewer than it can


def collect(host: Host) -> Optional[List[Record]]:
    """[{"pci", "device": vendor and device, "width", "most"}] of GPUs that a driver holds."""
    gpus: List[Record] = []
    for path in host.glob("/sys/bus/pci/devices/*"):
        if not (host.text(f"{path}/class", 16) or "").startswith(CLASSES):
            continue
        if (host.link(f"{path}/driver") or "").rpartition("/")[2] not in DRIVERS:
            continue
        width, most = (host.text(f"{path}/{which}_link_width", 16) or "" for which in ("current", "max"))
        if not (width.isdecimal() and most.isdecimal() and 0 < int(width) <= 32 and 0 < int(most) <= 32):
            continue  # virtual machines show 0 or 255, a dead link 63
        ids = [(host.text(f"{path}/{name}", 16) or "")[2:] for name in ("vendor", "device")]
        gpus.append(
            {"pci": smi.short(path.rpartition("/")[2]), "device": ":".join(ids), "width": int(width), "most": int(most)}
        )
    return gpus[: smi.MOST] or None


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A warning for GPUs with fewer lanes than most of their model, or than a quarter of their own."""
    gpus = [(n, gpu) for n, f in facts_by_node.items() for gpu in f.get(ID) or [] if isinstance(gpu, Mapping)]
    widths: Dict[str, List[int]] = {}
    for _, gpu in gpus:
        widths.setdefault(str(gpu["device"]), []).append(int(gpu["width"]))
    findings = []
    for node in facts_by_node:
        narrow: Dict[Any, List[Record]] = {}
        for gpu in [gpu for owner, gpu in gpus if owner == node]:
            usual = _usual(widths[str(gpu["device"])])
            if gpu["width"] < gpu["most"] and (gpu["width"] < usual or FEW * gpu["width"] <= gpu["most"]):
                narrow.setdefault((gpu["width"], gpu["most"], usual), []).append(gpu)
        for (width, most, usual), some in narrow.items():
            findings.append(_finding(node, width, most, usual, some))
    return findings


def _usual(widths: List[int]) -> int:
    """What more than half have; 0 where there is no such width."""
    best = max(set(widths), key=lambda w: (widths.count(w), w))
    return best if 2 * widths.count(best) > len(widths) else 0


def _finding(node: str, width: int, most: int, usual: int, gpus: List[Record]) -> Finding:
    pcis = [str(gpu["pci"]) for gpu in gpus]
    which = f"the GPU at {pcis[0]}" if len(pcis) == 1 else f"the GPUs at {join_names(pcis)}"
    message = f"{which} of {node} {plural(len(pcis), 'uses', 'use')} {width} of {most} PCIe lanes"
    message += f"; most GPUs of this model use {usual}" if usual > width else ""
    look = remote(node, "sudo", "lspci", "-vv", "-s", pcis[0])
    remedy = f"reboot {node}; if it stays, reseat the card or its riser: {look}"
    evidence = tuple(f"{pci}: current_link_width {width}, max_link_width {most}" for pci in pcis[:4])
    return Finding(ID, "warn", message, remedy, place([node]), evidence)
