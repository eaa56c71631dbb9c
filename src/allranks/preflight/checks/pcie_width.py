"""Network adapters use as many PCIe lanes, at the speed, as they can and as on the other nodes.

An adapter that trained fewer lanes (x8 of x16) halves its bandwidth in silence. Files: current_link_width,
max_link_width, current_link_speed of the PCI device (Documentation/ABI/testing/sysfs-bus-pci). A narrower slot
by design matters only where the port is faster than the slot. imbue's host-health-checks compare both.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from allranks.findings import Finding
from allranks.protocol.records import NamedTuple
from allranks.text import join_names

from .. import rdma
from ..compare import Findings, Nodes, by_item, by_value, collected, differences, remote, values_of, warn
from ..host import Host, base_name, linked_name, text_in
from ..typed_facts import Request

ID = "pcie_width"
GROUP = "network"
LEVEL = "quick"
AMPLE = 4  # times the port's rate
# Gb/s of a lane by GT/s after its encoding: 8b/10b up to 5 GT/s, 128b/130b up to 32, flits from 64 on.
LANE = {2.5: 2.0, 5.0: 4.0, 8.0: 7.88, 16.0: 15.75, 32.0: 31.5, 64.0: 62.0}


class Adapter(NamedTuple):
    """Lanes and speed (`16.0 GT/s PCIe`) of the slot's link, used and possible.

    `rate`: Gb/s of the fastest port (0: not known).
    """

    pci: str
    width: int
    most: int
    speed: str = ""
    rate: float = 0.0
    max_speed: str = ""

    @property
    def link(self) -> str:
        """`x16 at 16.0 GT/s`."""
        width = f"x{self.width}"
        if self.speed:
            return f"{width} at {self.speed.replace(' PCIe', '')}"
        return width

    @property
    def capacity(self) -> float:
        """Gb/s of the link; 0 where the speed is not known."""
        return self.width * LANE.get(_number(self.speed), 0.0)

    @property
    def lanes(self) -> str:
        """`8 of 16 PCIe lanes: 126 Gb/s for a port of 200 Gb/s`."""
        return f"{self.width} of {self.most} PCIe lanes: {self.capacity:.0f} Gb/s for a port of {self.rate:g} Gb/s"

    @property
    def is_degraded(self) -> bool:
        """Less than the adapter can, and not far more than its port needs."""
        less = self.width < self.most or (self.max_speed and self.speed != self.max_speed)
        return bool(less) and not 0 < AMPLE * self.rate <= self.capacity


def collect(host: Host) -> Optional[Dict[str, Adapter]]:
    """By device, each adapter once."""
    adapters: Dict[str, Adapter] = {}
    for path in [*host.glob("/sys/class/infiniband/*")[:64], *host.glob("/sys/class/net/*")[:256]]:
        device = f"{path}/device"
        pci = linked_name(host, device)
        lanes = rdma.lanes(host, device)
        if lanes and pci not in [adapter.pci for adapter in adapters.values()]:
            speeds = [text_in(host, f"{device}/{which}_link_speed", 32) for which in ("current", "max")]
            adapters[base_name(path)] = Adapter(pci, *lanes, speeds[0], _rate(host, path), speeds[1])
    return adapters or None


def _rate(host: Host, path: str) -> float:
    """Read Gb/s of the fastest port of an adapter or of an interface; 0 where neither shows it."""
    rates = [_number(text_in(host, file)) for file in host.glob(f"{path}/ports/*/rate")]
    return max([_number(text_in(host, f"{path}/speed")) / 1000, *rates])


def _number(text: str) -> float:
    first = text.partition(" ")[0]
    if not first.replace(".", "", 1).isdecimal():
        return 0.0
    return float(first)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings: other than most nodes; narrower than the adapter and too slow for its port."""
    for name, by_node in by_item(collected(facts_by_node, ID, Dict[str, Adapter])).items():
        reported: List[str] = []
        links = values_of(by_node, lambda adapter: adapter.link)
        usual = by_node[next(iter(by_value(links).values()))[0]].capacity
        for odd in differences(f"PCIe link of {name}", links, one="has a PCIe link of", subject=name):
            worse = [node for node in odd.nodes if by_node[node].is_degraded]
            if worse and (odd.norm is None or by_node[worse[0]].capacity < usual):
                reported += odd.nodes
                yield _finding(name, odd.nodes, odd.message, by_node, worse[0])
        slow = {node: adapter.lanes for node, adapter in by_node.items() if node not in reported and _is_slow(adapter)}
        for lanes, nodes in by_value(slow).items():
            message = f"{name} on {join_names(nodes)} has {lanes}"
            yield _finding(name, nodes, message, by_node, nodes[0])


def _is_slow(adapter: Adapter) -> bool:
    """Whatever the others have."""
    return adapter.width < adapter.most and 0 < adapter.capacity < adapter.rate


def _finding(name: str, nodes: List[str], message: str, by_node: Dict[str, Adapter], worst: str) -> Finding:
    show = remote(worst, "sudo lspci -vv -s", by_node[worst].pci)
    remedy = f"reseat the card, see the riser and the slot's setting in the firmware: {show}"
    evidence = [f"{n}: {v.pci} width {v.width} of {v.most}, {v.speed}" for n, v in list(by_node.items())[:4]]
    return warn(ID, nodes, message, remedy, evidence, interface=name)
