"""Network interfaces of the same name have the same speed and MTU on all nodes, full duplex, and are up.

Files: /sys/class/net/*/{speed,duplex,mtu,operstate} (Documentation/ABI/testing/sysfs-class-net). Virtual
machines show no speed; interfaces that containers and tunnels bring along are left out.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Difference, Nodes, differences, parts, place, remote, warn
from ..host import Host, Record, Request

ID = "nic"
GROUP = "network"
LEVEL = "quick"
# fmt: off
VIRTUAL = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "cilium", "lxc", "tun", "tap", "wg",
           "tailscale", "ifb", "dummy", "kube-", "nodelocaldns", "vxlan", "genev", "ovs-", "podman", "vnet", "wl", "ww")
# fmt: on


def collect(host: Host) -> Optional[Dict[str, Record]]:
    """{"eth0": {"mtu": 9000, "speed": Mb/s, "duplex": "full", "state": "up", "device": true}}."""
    interfaces = {}
    for path in host.glob("/sys/class/net/*")[:256]:
        name = path.rpartition("/")[2]
        mtu = host.text(f"{path}/mtu", 32) or ""
        if name.startswith(VIRTUAL) or not mtu.isdecimal():
            continue
        one: Dict[str, Any] = {"mtu": int(mtu), "device": host.exists(f"{path}/device")}
        speed = host.text(f"{path}/speed", 32) or ""  # EINVAL while down; -1: not known
        if speed.isdecimal() and 0 < int(speed) < 10_000_000:
            one["speed"] = int(speed)
        for key, file in (("duplex", "duplex"), ("state", "operstate")):
            one[key] = host.text(f"{path}/{file}", 32) or ""
        interfaces[name] = one
    return dict(list(interfaces.items())[:64]) or None


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """Warnings."""
    collected = parts(facts_by_node, ID)
    findings = []
    for name in dict.fromkeys(name for v in collected.values() for name in v):
        by_node = {n: v[name] for n, v in collected.items() if name in v}
        up = {n: v for n, v in by_node.items() if v.get("state") in ("up", "unknown")}
        findings += _speed(name, up) + _mtu(name, up) + _half(name, up) + _down(name, by_node)
    return findings


def _speed(name: str, up: Nodes) -> List[Finding]:
    speeds = {n: v["speed"] for n, v in up.items() if v.get("speed") and v.get("device")}
    odd = differences(f"speed of {name}", speeds, _rate, "runs at", "run at", subject=name)
    look = "see cable, transceiver and switch port"
    return warn(ID, odd, lambda d: f"{look}: {remote(d.nodes[0], 'ethtool', name)}", interface=name)


def _rate(megabits: Any) -> str:
    return f"{megabits / 1000:g} Gb/s" if megabits >= 1000 else f"{megabits} Mb/s"


def _mtu(name: str, up: Nodes) -> List[Finding]:
    mtus = {n: v["mtu"] for n, v in up.items()}

    def remedy(odd: Difference) -> str:
        wanted = odd.norm or min(mtus.values())
        node = next(n for n in odd.nodes if mtus[n] != wanted)
        line = remote(node, "sudo", "ip", "link", "set", "dev", name, "mtu", str(wanted))
        return f"use one MTU everywhere: {line}"

    what = f"MTU of {name}"
    odd = differences(what, mtus, one="is", subject=f"the {what}")
    return warn("mtu-or-packet-loss", odd, remedy, interface=name)


def _half(name: str, up: Nodes) -> List[Finding]:
    nodes = [n for n, v in up.items() if v.get("duplex") == "half" and v.get("device")]
    if not nodes:
        return []
    message = f"{name} on {join_names(nodes)} runs at half duplex: one end negotiates and the other is fixed"
    remedy = f"let both ends negotiate: {remote(nodes[0], 'sudo', 'ethtool', '-s', name, 'autoneg', 'on')}"
    return [Finding(ID, "warn", message, remedy, place(nodes, interface=name))]


def _down(name: str, by_node: Nodes) -> List[Finding]:
    """A device that is down here and up on most nodes."""
    states = {n: v["state"] for n, v in by_node.items() if v.get("device") and v.get("state") in ("up", "down")}
    odd = differences(f"state of {name}", states, one="is", many="have it", subject=name)
    down = [d for d in odd if d.norm == "up"]
    look = "see its cable and configuration"
    remedy = lambda d: f"{look}: {remote(d.nodes[0], 'ip', 'link', 'show', name)}"  # noqa: E731
    return warn("node-network-down", down, remedy, interface=name)
