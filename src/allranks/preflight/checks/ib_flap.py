"""Links of InfiniBand, RoCE and Ethernet ports have not been lost again and again.

counters/link_downed counts since the driver started (Documentation/ABI/stable/sysfs-class-infiniband).
And carrier_changes counts every loss and return (sysfs-class-net). Each node's own boots and a switch's
maintenance count too, so: ten or more, and five a day or three times as many as elsewhere.
"""

from __future__ import annotations

from typing import Dict, Optional

from allranks.protocol.records import NamedTuple

from .. import rdma
from ..compare import Findings, Nodes, by_item, collected, remote, values_of, warn
from ..host import Host, base_name, number_in, uptime
from ..typed_facts import Request

ID = "ib_flap"
GROUP = "network"
LEVEL = "quick"
BETWEEN_MACHINES = True
MANY = 10
A_DAY = 5
OTHERS = 3
DAY = 86400.0


class Flaps(NamedTuple):
    """Days since boot (None: not known), and how often each port (`mlx5_0/1`) or interface that is up went down."""

    days: Optional[float]
    downs: Dict[str, int]


def collect(host: Host) -> Optional[Flaps]:
    """None where nothing counts."""
    downs: Dict[str, int] = {}
    for port, path in rdma.ports(host).items():
        times = number_in(host, f"{path}/counters/link_downed")
        if times is not None and rdma.is_active(host, path):
            downs[port] = times
    for path in host.glob("/sys/class/net/*")[:256]:
        changes = number_in(host, f"{path}/carrier_changes")
        if changes is not None and _is_cabled(host, path) and host.text(f"{path}/operstate", 32) == "up":
            downs[base_name(path)] = changes // 2
    if not downs:
        return None
    up = uptime(host)
    return Flaps(up and round(up / DAY, 2), downs)


def _is_cabled(host: Host, path: str) -> bool:
    """Tell whether there is a device of its own behind it, and no radio."""
    return host.exists(f"{path}/device") and not host.exists(f"{path}/phy80211") and not host.exists(f"{path}/wireless")


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """node-network-down, warnings; nothing for one node alone, which needs no links."""
    flaps = collected(facts_by_node, ID, Flaps)
    if len(facts_by_node) < 2:
        return
    for port, counts in by_item(values_of(flaps, lambda one: one.downs)).items():
        usual = sorted(counts.values())[(len(counts) - 1) // 2]
        for node, count in counts.items():
            days = flaps[node].days
            is_often = days is not None and count / max(1.0, days) >= A_DAY
            is_odd = len(counts) > 1 and count >= OTHERS * max(usual, 1)
            if count >= MANY and (is_often or (is_odd and len(counts) > 2)):
                message = f"the link of {rdma.port_name(port)} on {node} went down {count} times in {_period(days)}"
                if is_odd:
                    message += f" (the median of {len(counts)} nodes is {usual})"
                device = rdma.device_of(port)
                show = remote(node, f"mlxlink -d {device} -m" if "/" in port else f"ethtool -S {device}")
                remedy = f"clean, reseat or replace the cable or transceiver, see the switch port: {show}"
                yield warn("node-network-down", node, message, remedy, interface=device)


def _period(days: Optional[float]) -> str:
    if days is None:
        return "the time since boot"
    if days >= 2:
        return f"{days:.0f} days"
    return f"{24 * days:.0f} hours"
