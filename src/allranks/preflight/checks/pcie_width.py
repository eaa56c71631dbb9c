"""GPUs and network adapters use as many PCIe lanes, at the speed, as others of their model, and not only a few.

A device that trained fewer lanes (x8 of x16) halves its bandwidth in silence. Files: current_link_width,
max_link_width, current_link_speed of the PCI device (Documentation/ABI/testing/sysfs-bus-pci). Of GPUs the lanes alone
count: an idle one lowers its speed to save power. Slots that are narrow for all of a model pass.
imbue's host-health-checks compare lanes and speed.
"""

from __future__ import annotations

from collections import Counter
from typing import List, Optional

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import group, join_names, plural

from .. import smi
from ..compare import Findings, Nodes, collected, remote, values_of, warn
from ..host import Host, base_name, linked_name, number_in, text_in
from ..typed_facts import Request

ID = "pcie_width"
GROUP = "network"
LEVEL = "quick"
GPU_DRIVERS = ("nvidia", "amdgpu")
CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D, other display controllers, processing accelerators
LARGE = 8  # lanes: a card with fewer is an old one, which needs no more
WIDEST = 32  # lanes: virtual devices show 63 or 255
FEW = 4  # times fewer lanes than it has
MOST = 128


class PcieLink(NamedTuple):
    """A device with its vendor and model; its lanes and speed (`16.0 GT/s PCIe`; empty of a GPU), used and possible."""

    name: str
    pci: str
    model: str
    width: int
    most: int
    speed: str = ""
    max_speed: str = ""

    @property
    def capacity(self) -> float:
        """What it carries, to be compared with others of its model."""
        return self.width * (smi.number(self.speed.partition(" ")[0]) or 1.0)

    @property
    def words(self) -> str:
        """`8 of 16 PCIe lanes at 8.0 GT/s`."""
        at_speed = f" at {self.speed.replace(' PCIe', '')}" if self.speed else ""
        return f"{self.width} of {self.most} PCIe lanes{at_speed}"


def collect(host: Host) -> Optional[List[PcieLink]]:
    """Each adapter once, and GPUs that a driver holds."""
    links: List[PcieLink] = []
    for path in [*host.glob("/sys/class/infiniband/*")[:64], *host.glob("/sys/class/net/*")[:256]]:
        device = f"{path}/device"
        pci = linked_name(host, device)
        link = _link(host, base_name(path), pci, device)
        if link is not None and pci not in [one.pci for one in links]:
            speeds = [text_in(host, f"{device}/{which}_link_speed", 32) for which in ("current", "max")]
            links.append(link._replace(speed=speeds[0], max_speed=speeds[1]))
    for path in host.glob("/sys/bus/pci/devices/*"):
        is_gpu = text_in(host, f"{path}/class", 16).startswith(CLASSES)
        if is_gpu and linked_name(host, f"{path}/driver") in GPU_DRIVERS:
            pci = smi.short(base_name(path))
            link = _link(host, f"GPU at {pci}", pci, path)
            links += [link] if link is not None else []
    return links[:MOST] or None


def _link(host: Host, name: str, pci: str, device: str) -> Optional[PcieLink]:
    width = number_in(host, f"{device}/current_link_width")
    most = number_in(host, f"{device}/max_link_width")
    if not width or not most or max(width, most) > WIDEST or most < LARGE:
        return None
    ids = ":".join(text_in(host, f"{device}/{file}", 16)[2:] for file in ("vendor", "device"))
    return PcieLink(name, pci, name if ids == ":" else ids, width, most)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of devices with less than most of their model, or with a quarter of their lanes."""
    nodes = collected(facts_by_node, ID, List[PcieLink])
    models = group([link for links in nodes.values() for link in links], lambda link: link.model)
    usual = values_of(models, _usual)
    for node, links in nodes.items():
        less = [link for link in links if FEW * link.width <= link.most or link.capacity < usual[link.model].capacity]
        slow = [link for link in less if link.width < link.most or link.speed != link.max_speed]
        for alike in group(slow, lambda link: (link.words, link.model)).values():
            yield _finding(node, alike, usual[alike[0].model])


def _usual(links: List[PcieLink]) -> PcieLink:
    """Return one with what most have, of ties the better."""
    count = Counter(link.capacity for link in links)
    return max(links, key=lambda link: (count[link.capacity], link.capacity))


def _finding(node: str, links: List[PcieLink], usual: PcieLink) -> Finding:
    names = [link.name for link in links]
    message = f"{join_names(names)} of {node} {plural(len(names), 'uses', 'use')} {links[0].words}"
    if usual.capacity > links[0].capacity:
        message += f" (others of this model use {usual.words})"
    show = remote(node, "sudo lspci -vv -s", links[0].pci)
    remedy = f"reboot {node}. If it stays, reseat the card, and see the slot's setting in the firmware: {show}"
    evidence = [f"{link.pci}: {link.words}" for link in links[:4]]
    return warn(ID, node, message, remedy, evidence)
