"""Network adapters use as many PCIe lanes, at the speed, as they can and as on the other nodes.

An adapter that trained fewer lanes (x8 of x16) halves its bandwidth in silence. Files: current_link_width,
max_link_width, current_link_speed of the PCI device (Documentation/ABI/testing/sysfs-bus-pci). A narrower slot
by design matters only where the port is faster than the slot. imbue's host-health-checks compare both.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, by_value, differences, nodes_of, parts, place, remote
from ..host import Host, Record, Request

ID = "pcie_width"
GROUP = "network"
LEVEL = "quick"
AMPLE = 4  # times the port's rate
# Gb/s of a lane after its encoding: 8b/10b up to 5 GT/s, 128b/130b up to 32, flits from 64 on.
LANE = {
    "2.5": 2.0,
    "5.0": 4.0,
    "5": 4.0,
    "8.0": 7.88,
    "8": 7.88,
    "16.0": 15.75,
    "16": 15.75,
    "32.0": 31.5,
    "32": 31.5,
    "64.0": 62.0,
    "64": 62.0,
}


def collect(host: Host) -> Optional[Dict[str, Record]]:
    """{"mlx5_0": {"pci", "width", "most", "speed": "16.0 GT/s PCIe", "rate": Gb/s of its fastest port}}."""
    adapters: Dict[str, Record] = {}
    addresses = set()
    for path in [*host.glob("/sys/class/infiniband/*")[:64], *host.glob("/sys/class/net/*")[:256]]:
        pci = (host.link(f"{path}/device") or "").rpartition("/")[2]
        width, most = (host.text(f"{path}/device/{f}_link_width", 16) or "" for f in ("current", "max"))
        if pci in addresses or not (
            width.isdecimal() and most.isdecimal() and 0 < int(width) <= 32 and int(most) <= 32
        ):
            continue  # virtual functions show 0, unknown widths 63 or 255
        addresses.add(pci)
        speed = host.text(f"{path}/device/current_link_speed", 32) or ""
        adapters[path.rpartition("/")[2]] = {
            "pci": pci,
            "width": int(width),
            "most": int(most),
            "speed": speed,
            "rate": _rate(host, path),
            "max_speed": host.text(f"{path}/device/max_link_speed", 32) or "",
        }
    return adapters or None


def _rate(host: Host, path: str) -> float:
    """Gb/s; 0 where it is not known."""
    rates = []
    for file in host.glob(f"{path}/ports/*/rate"):
        rates.append((host.text(file, 64) or "").partition(" ")[0])
    speed = host.text(f"{path}/speed", 32) or ""
    if speed.isdecimal():
        rates.append(str(int(speed) / 1000))
    numbers = [float(r) for r in rates if r.replace(".", "", 1).isdecimal()]
    return max(numbers, default=0.0)


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings: other than most nodes; narrower than the adapter and too slow for its port."""
    collected = parts(facts_by_node, ID)
    findings = []
    for name in dict.fromkeys(name for v in collected.values() for name in v):
        by_node = {n: v[name] for n, v in collected.items() if name in v}
        links = {n: _link(v) for n, v in by_node.items()}
        for d in differences(f"PCIe link of {name}", links, one="has a PCIe link of", subject=name):
            worse = [n for n in d.nodes if _is_degraded(by_node[n])]
            if not worse or (d.norm is not None and _capacity(by_node[worse[0]]) >= _usual(by_node, links)):
                continue
            findings.append(_finding(name, d.nodes, d.message, by_node, worse[0]))
        reported = {node for f in findings if f.where.interface == name for node in nodes_of(f.where)}
        findings += _narrow(name, {n: v for n, v in by_node.items() if n not in reported})
    return findings


def _link(one: Record) -> str:
    speed = str(one.get("speed") or "").replace(" PCIe", "")
    return f"x{one['width']}" + (f" at {speed}" if speed else "")


def _capacity(one: Record) -> float:
    return int(one["width"]) * LANE.get(str(one.get("speed") or "").partition(" ")[0], 0.0)


def _is_degraded(one: Record) -> bool:
    """Less than the adapter can, and not far more than its port needs."""
    less = one["width"] < one["most"] or (one.get("max_speed") and one.get("speed") != one["max_speed"])
    return bool(less) and not 0 < AMPLE * float(one.get("rate") or 0) <= _capacity(one)


def _usual(by_node: Nodes, links: Mapping[str, str]) -> float:
    """Of the nodes that are most."""
    return _capacity(by_node[next(iter(by_value(links).values()))[0]])


def _narrow(name: str, by_node: Nodes) -> List[Finding]:
    """Whatever the others have."""
    slow = [n for n, v in by_node.items() if v["width"] < v["most"] and 0 < _capacity(v) < float(v.get("rate") or 0)]
    if not slow:
        return []
    one = by_node[slow[0]]
    message = f"{name} on {join_names(slow)} has {one['width']} of {one['most']} PCIe lanes: {_capacity(one):.0f} Gb/s"
    message += f" for a port of {one['rate']:g} Gb/s"
    return [_finding(name, slow, message, by_node, slow[0])]


def _finding(name: str, nodes: List[str], message: str, by_node: Nodes, worst: str) -> Finding:
    look = remote(worst, "sudo", "lspci", "-vv", "-s", str(by_node[worst]["pci"]))
    remedy = f"reseat the card, see the riser and the slot's setting in the firmware: {look}"
    evidence = tuple(
        f"{n}: {v['pci']} width {v['width']} of {v['most']}, {v.get('speed')}" for n, v in list(by_node.items())[:4]
    )
    return Finding(ID, "warn", message, remedy, place(nodes, interface=name), evidence)
