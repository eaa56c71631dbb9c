"""Links of InfiniBand, RoCE and Ethernet ports have not gone down again and again.

counters/link_downed counts since the driver started (Documentation/ABI/stable/sysfs-class-infiniband);
carrier_changes counts every loss and return (sysfs-class-net). Each node's own boots and a switch's
maintenance count too, so: ten or more, and five a day or three times as many as elsewhere.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from allranks.findings import Finding

from .. import rdma
from ..compare import Nodes, parts, place, remote
from ..host import Host, Record, Request, number_in, uptime

ID = "ib_flap"
GROUP = "network"
LEVEL = "quick"
BETWEEN_MACHINES = True
MANY = 10
A_DAY = 5
OTHERS = 3
DAY = 86400.0


def collect(host: Host) -> Optional[Record]:
    """{"days": since boot, "downs": {"mlx5_0/1" or interface: how often}} of ports that are up now."""
    downs: Dict[str, int] = {}
    for device, number, path in rdma.ports(host):
        times = number_in(host, f"{path}/counters/link_downed")
        if times is not None and rdma.is_active(host, path):
            downs[f"{device}/{number}"] = times
    for path in host.glob("/sys/class/net/*")[:256]:
        changes = number_in(host, f"{path}/carrier_changes")
        if changes is not None and _is_cabled(host, path) and host.text(f"{path}/operstate", 32) == "up":
            downs[path.rpartition("/")[2]] = changes // 2
    up = uptime(host)
    days = None if up is None else round(up / DAY, 2)
    return {"days": days, "downs": downs} if downs else None


def _is_cabled(host: Host, path: str) -> bool:
    """A device of its own, and no radio."""
    return host.exists(f"{path}/device") and not host.exists(f"{path}/phy80211") and not host.exists(f"{path}/wireless")


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """node-network-down, warnings; nothing for one node alone, whose links nobody needs."""
    collected = parts(facts_by_node, ID)
    if len(facts_by_node) < 2:
        return []
    findings = []
    for port in dict.fromkeys(port for v in collected.values() for port in v["downs"]):
        counts = {n: int(v["downs"][port]) for n, v in collected.items() if port in v["downs"]}
        usual = sorted(counts.values())[(len(counts) - 1) // 2]
        for node, count in counts.items():
            days = collected[node].get("days")
            is_often = days is not None and count / max(1.0, days) >= A_DAY
            is_odd = len(counts) > 1 and count >= OTHERS * max(usual, 1)
            if count >= MANY and (is_often or (is_odd and len(counts) > 2)):
                compared = f"; the median of {len(counts)} nodes is {usual}" if is_odd else ""
                findings.append(_finding(node, port, f"{count} times in {_period(days)}{compared}"))
    return findings


def _finding(node: str, port: str, how_often: str) -> Finding:
    device = port.partition("/")[0]
    look = ("mlxlink", "-d", device, "-m") if "/" in port else ("ethtool", "-S", device)
    message = f"the link of {rdma.port_name(port)} on {node} went down {how_often}"
    remedy = f"clean, reseat or replace the cable or transceiver, see the switch port: {remote(node, *look)}"
    return Finding("node-network-down", "warn", message, remedy, place([node], interface=device))


def _period(days: Optional[float]) -> str:
    if days is None:
        return "the time since boot"
    return f"{days:.0f} days" if days >= 2 else f"{24 * days:.0f} hours"
