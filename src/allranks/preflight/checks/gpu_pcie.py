"""The GPUs use as many PCIe lanes as the others, and no small part of what they can.

Files: current_link_width and max_link_width of the PCI device (Documentation/ABI/testing/sysfs-bus-pci). Width
only: the speed of an idle GPU is low to save power. Boards with x8 slots are not a fault where all have them.
"""

from __future__ import annotations

from collections import Counter
from typing import List, Optional

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import join_names, plural

from .. import rdma, smi
from ..compare import Findings, Nodes, collected, group, remote, values_of, warn
from ..host import Host, base_name, linked_name, text_in
from ..typed_facts import Request

ID = "gpu_pcie"
GROUP = "gpu"
LEVEL = "quick"
DRIVERS = ("nvidia", "amdgpu")
CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D, other display controllers, processing accelerators
FEW = 4  # times fewer than it can


class PcieLink(NamedTuple):
    """A GPU's address, vendor and device, and the lanes that it uses and has."""

    pci: str
    device: str
    width: int
    most: int


def collect(host: Host) -> Optional[List[PcieLink]]:
    """GPUs that a driver holds."""
    links = []
    for path in host.glob("/sys/bus/pci/devices/*"):
        lanes = rdma.lanes(host, path)
        is_gpu = text_in(host, f"{path}/class", 16).startswith(CLASSES)
        if lanes and is_gpu and linked_name(host, f"{path}/driver") in DRIVERS:
            ids = [text_in(host, f"{path}/{name}", 16)[2:] for name in ("vendor", "device")]
            links.append(PcieLink(smi.short(base_name(path)), ":".join(ids), *lanes))
    return links[: smi.MOST] or None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of GPUs with fewer lanes than most of their model, or than a quarter of their own."""
    nodes = collected(facts_by_node, ID, List[PcieLink])
    models = group([gpu for gpus in nodes.values() for gpu in gpus], lambda gpu: gpu.device)
    usual = values_of(models, lambda gpus: _usual([gpu.width for gpu in gpus]))
    for node, gpus in nodes.items():
        narrow = [gpu for gpu in gpus if gpu.width < min(gpu.most, max(usual[gpu.device], gpu.most // FEW + 1))]
        for (width, most, norm), alike in group(narrow, lambda gpu: (gpu.width, gpu.most, usual[gpu.device])).items():
            yield _finding(node, width, most, norm, [gpu.pci for gpu in alike])


def _usual(widths: List[int]) -> int:
    """Return what more than half have; 0 without such a width."""
    width, count = Counter(widths).most_common(1)[0]
    if 2 * count > len(widths):
        return width
    return 0


def _finding(node: str, width: int, most: int, usual: int, pcis: List[str]) -> Finding:
    which = f"the {plural(len(pcis), 'GPU')} at {join_names(pcis)}"
    message = f"{which} of {node} {plural(len(pcis), 'uses', 'use')} {width} of {most} PCIe lanes"
    if usual > width:
        message += f" (most GPUs of this model use {usual})"
    remedy = f"reboot {node}. If it stays, reseat the card or its riser: {remote(node, 'sudo lspci -vv -s', pcis[0])}"
    evidence = [f"{pci}: current_link_width {width}, max_link_width {most}" for pci in pcis[:4]]
    return warn(ID, node, message, remedy, evidence)
