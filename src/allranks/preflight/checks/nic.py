"""Network interfaces of the same name have the same speed and MTU on all nodes, and are up.

Files: /sys/class/net/*/{speed,mtu,operstate} (Documentation/ABI/testing/sysfs-class-net). Virtual
machines show no speed. Interfaces that containers and tunnels bring along are left out.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional

from allranks.protocol.records import NamedTuple

from ..compare import Difference, Findings, Nodes, by_item, collected, differences, remote, those, values_of, warn_each
from ..host import Host, base_name, number_in, text_in
from ..typed_facts import Request

ID = "nic"
GROUP = "network"
LEVEL = "quick"
# fmt: off
VIRTUAL = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "cilium", "lxc", "tun", "tap", "wg",
           "tailscale", "ifb", "dummy", "kube-", "nodelocaldns", "vxlan", "genev", "ovs-", "podman", "vnet", "wl", "ww")
# fmt: on


class InterfaceSpeed(NamedTuple):
    """Bytes, whether a device is behind it, Mb/s (0: not known), `up`."""

    mtu: int
    device: bool = False
    speed: int = 0
    state: str = ""


Interfaces = Mapping[str, InterfaceSpeed]


def collect(host: Host) -> Optional[Dict[str, InterfaceSpeed]]:
    """By name."""
    interfaces = {}
    for path in host.glob("/sys/class/net/*")[:256]:
        name = base_name(path)
        mtu = number_in(host, f"{path}/mtu")
        if mtu is not None and not name.startswith(VIRTUAL):
            speed = number_in(host, f"{path}/speed") or 0  # EINVAL while down; -1: not known
            device = host.exists(f"{path}/device")
            state = text_in(host, f"{path}/operstate", 32)
            interfaces[name] = InterfaceSpeed(mtu, device, speed if speed < 10_000_000 else 0, state)
    return dict(list(interfaces.items())[:64]) or None


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warnings."""
    for name, by_node in by_item(collected(facts_by_node, ID, Dict[str, InterfaceSpeed])).items():
        up = those(by_node, lambda one: one.state in ("up", "unknown"))
        yield from _speed(name, up)
        yield from _mtu(name, up)
        yield from _down(name, by_node)


def _speed(name: str, up: Interfaces) -> Findings:
    speeds = {node: one.speed for node, one in up.items() if one.speed and one.device}
    odd = differences(f"speed of {name}", speeds, _rate, "runs at", "run at", subject=name)
    advice = "see cable, transceiver and switch port"
    return warn_each(ID, odd, lambda d: f"{advice}: {remote(d.nodes[0], 'ethtool', name)}", name)


def _rate(megabits: int) -> str:
    if megabits >= 1000:
        return f"{megabits / 1000:g} Gb/s"
    return f"{megabits} Mb/s"


def _mtu(name: str, up: Interfaces) -> Findings:
    mtus = values_of(up, lambda one: one.mtu)

    def remedy(odd: Difference[int]) -> str:
        wanted = odd.norm or min(mtus.values())
        node = next(node for node in odd.nodes if mtus[node] != wanted)
        return f"use one MTU everywhere: {remote(node, f'sudo ip link set dev {name} mtu {wanted}')}"

    what = f"MTU of {name}"
    return warn_each("mtu-or-packet-loss", differences(what, mtus, one="is", subject=f"the {what}"), remedy, name)


def _down(name: str, by_node: Interfaces) -> Findings:
    states = {node: one.state for node, one in by_node.items() if one.device and one.state in ("up", "down")}
    odd = differences(f"state of {name}", states, one="is", many="have it", subject=name)
    down = [d for d in odd if d.norm == "up"]
    advice = "see its cable and configuration"
    return warn_each("node-network-down", down, lambda d: f"{advice}: {remote(d.nodes[0], 'ip link show', name)}", name)
