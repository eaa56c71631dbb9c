"""Links of InfiniBand, RoCE and Ethernet ports have not gone down again and again.

counters/link_downed counts since the driver started (Documentation/ABI/stable/sysfs-class-infiniband);
carrier_changes counts every loss and return (sysfs-class-net). Each node's own boots and a switch's
maintenance count too, so: ten or more, and five a day or three times as many as elsewhere.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from allranks.findings import Finding

from ..compare import Nodes, part, place, remote
from ..host import Host

ID = "ib_flap"
GROUP = "network"
LEVEL = "quick"
BETWEEN_MACHINES = True
MANY = 10
A_DAY = 5
OTHERS = 3
DAY = 86400.0


def collect(host: Host) -> Optional[Dict[str, Any]]:
    """{"days": since boot, "downs": {"mlx5_0/1" or interface: how often}} of ports that are up now."""
    downs: Dict[str, int] = {}
    for path in host.glob("/sys/class/infiniband/*/ports/*")[:128]:
        words = path.split("/")
        text = host.text(f"{path}/counters/link_downed", 32) or ""
        if text.isdigit() and (host.text(f"{path}/state", 64) or "").endswith("ACTIVE"):
            downs[f"{words[4]}/{words[6]}"] = int(text)
    for path in host.glob("/sys/class/net/*")[:256]:
        text = host.text(f"{path}/carrier_changes", 32) or ""
        if text.isdigit() and _is_cabled(host, path) and host.text(f"{path}/operstate", 32) == "up":
            downs[path.rpartition("/")[2]] = int(text) // 2
    up = (host.text("/proc/uptime", 64) or "").split()
    return {"days": round(float(up[0]) / DAY, 2) if up else None, "downs": downs} if downs else None


def _is_cabled(host: Host, path: str) -> bool:
    """A device of its own, and no radio."""
    return host.exists(f"{path}/device") and not host.exists(f"{path}/phy80211") and not host.exists(f"{path}/wireless")


def judge(request: Mapping[str, Any], facts_by_node: Nodes) -> List[Finding]:
    """node-network-down, warnings; nothing for one node alone, whose links nobody needs."""
    collected = {n: part(f, ID) for n, f in facts_by_node.items() if part(f, ID)}
    if len(facts_by_node) < 2:
        return []
    findings = []
    for port in dict.fromkeys(port for v in collected.values() for port in v["downs"]):
        counts = {n: int(v["downs"][port]) for n, v in collected.items() if port in v["downs"]}
        usual = sorted(counts.values())[(len(counts) - 1) // 2]
        for node, count in counts.items():
            days = max(1.0, float(collected[node].get("days") or 1.0))
            often = collected[node].get("days") is not None and count / days >= A_DAY
            if count < MANY or not (often or (len(counts) > 2 and count >= OTHERS * max(usual, 1))):
                continue
            odd = len(counts) > 1 and count >= OTHERS * max(usual, 1)
            compared = f"; the median of {len(counts)} nodes is {usual}" if odd else ""
            message = (
                f"the link of {port_name(port)} on {node} went down {count} times in {_days(collected[node])}{compared}"
            )
            device = port.partition("/")[0]
            look = remote(node, "mlxlink", "-d", device, "-m") if "/" in port else remote(node, "ethtool", "-S", device)
            remedy = f"clean, reseat or replace the cable or transceiver, see the switch port: {look}"
            findings.append(Finding("node-network-down", "warn", message, remedy, place([node], interface=device)))
    return findings


def port_name(port: str) -> str:
    device, _, number = port.partition("/")
    return device if number in ("", "1") else f"{device} port {number}"


def _days(values: Mapping[str, Any]) -> str:
    days = values.get("days")
    if days is None:
        return "the time since boot"
    return f"{days:.0f} days" if days >= 2 else f"{24 * days:.0f} hours"
