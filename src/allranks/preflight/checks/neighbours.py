"""The kernel's table of neighbours (ARP) has room for all nodes: what does not fit is dropped as if packets were lost.

Files: /proc/sys/net/ipv4/neigh/default/gc_thresh3 (Documentation/networking/ip-sysctl.rst: the hard limit,
1024 where nobody has raised it), /proc/net/stat/arp_cache (net/core/neighbour.c: entries now, table_fulls since
boot, hexadecimal, a line a CPU). A node has an entry for every address on a network that it shares; with eight
rails 128 nodes are the most. Network namespaces and containers do not show it.
"""

from __future__ import annotations

import ipaddress
from typing import Dict, List, Mapping, Optional

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Facts, Nodes, part, place, remote
from ..host import Host, Request

Address = ipaddress.IPv4Address
Network = ipaddress.IPv4Network

ID = "neighbours"
GROUP = "network"
LEVEL = "quick"
BETWEEN_MACHINES = True
LIMIT = "/proc/sys/net/ipv4/neigh/default/gc_thresh3"
STATISTICS = "/proc/net/stat/arp_cache"
NEARLY = 0.8  # of the limit: other neighbours (storage, gateways, services) come and go


def collect(host: Host) -> Optional[Dict[str, int]]:
    """{"limit", "entries", "full": how often the table has overflowed since boot}."""
    limit = host.text(LIMIT, 32) or ""
    if not limit.isdecimal():
        return None
    return {"limit": int(limit), **_statistics(host.text(STATISTICS) or "")}


def _statistics(text: str) -> Dict[str, int]:
    """Of the statistics: entries are the same on every line, overflows are each CPU's own."""
    head, *rows = [line.split() for line in text.splitlines()[:4097]] or [[]]
    if not rows or "entries" not in head or "table_fulls" not in head:
        return {}
    cells = [dict(zip(head, row)) for row in rows if len(row) == len(head)]  # noqa: B905  (Python 3.8)
    return {"entries": int(cells[0]["entries"], 16), "full": sum(int(c["table_fulls"], 16) for c in cells)}


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """mtu-or-packet-loss: a failure where the nodes alone are too many, a warning where it has overflowed."""
    tables = {n: part(f, ID) for n, f in facts_by_node.items() if part(f, ID).get("limit")}
    needs = _shared(facts_by_node)
    small = [n for n, v in tables.items() if needs[n] > v["limit"]]
    tight = [n for n, v in tables.items() if n not in small and _overflows(v, needs[n])]
    findings = []
    if small:
        most = max(needs[n] for n in small)
        share = plural(len(small), "shares", "share")
        message = f"{join_names(small)} {share} networks with {most:,} addresses of the other nodes"
        message += f", and the kernel keeps {tables[small[0]]['limit']:,} neighbours at most: packets will be lost"
        findings.append(Finding("mtu-or-packet-loss", "fail", message, _remedy(small[0], most), place(small)))
    if tight:
        one = tables[tight[0]]
        message = (
            f"the kernel's table of neighbours on {join_names(tight)} has overflowed {one['full']:,} times since boot"
        )
        message += f" ({one['entries']:,} of {one['limit']:,} in use): packets were dropped"
        remedy = _remedy(tight[0], max(one["entries"], needs[tight[0]]))
        findings.append(Finding("mtu-or-packet-loss", "warn", message, remedy, place(tight)))
    return findings


def _overflows(table: Mapping[str, int], need: int) -> bool:
    """It has, and would again: the limit has not been raised since."""
    return bool(table.get("full")) and max(need, table.get("entries", 0)) >= NEARLY * table["limit"]


def _remedy(node: str, need: int) -> str:
    """A limit with room for as many again, and the soft one at half of it."""
    limit = 1 << (2 * need).bit_length()
    settings = (f"net.ipv4.neigh.default.gc_thresh3={limit}", f"net.ipv4.neigh.default.gc_thresh2={limit // 2}")
    return f"on all nodes: {remote(node, 'sudo', 'sysctl', '-w', *settings)} (and in /etc/sysctl.d, for the next boot)"


def _addresses(facts: Facts) -> Dict[Address, Network]:
    """IPv4 addresses of a node with their networks."""
    items = facts.get("interfaces")
    networks = {}
    for item in items if isinstance(items, list) else ():
        for one in item.get("addresses") or ():
            if one.get("family") == 4 and one.get("scope") == "global":
                network = ipaddress.IPv4Network(f"{one['address']}/{one['prefix']}", strict=False)
                networks[ipaddress.IPv4Address(one["address"])] = network
    return networks


def _shared(facts_by_node: Nodes) -> Dict[str, int]:
    """How many addresses of other nodes lie on each node's own networks."""
    by_node = {node: _addresses(facts) for node, facts in facts_by_node.items()}
    everywhere = {address for addresses in by_node.values() for address in addresses}
    networks = {network for addresses in by_node.values() for network in addresses.values()}
    there = {network: {a for a in everywhere if a in network} for network in networks}
    return {
        n: sum(len(there[network] - addresses.keys()) for network in set(addresses.values()))
        for n, addresses in by_node.items()
    }
