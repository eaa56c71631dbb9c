"""The kernel's table of neighbours (ARP) has room for all nodes: what does not fit is dropped as if packets were lost.

The hard limit is /proc/sys/net/ipv4/neigh/default/gc_thresh3, 1024 by default (Documentation/networking/ip-sysctl.rst).
/proc/net/stat/arp_cache has the entries now and the table_fulls since boot, hexadecimal, a line a CPU
(net/core/neighbour.c). A node has an entry for every address on a network that it shares. With eight
rails 128 nodes are the most. Network namespaces and containers do not show it.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address
from typing import Dict, Optional, Tuple

from allranks.protocol.records import NamedTuple
from allranks.text import join_names, plural

from ..compare import Findings, Nodes, by_value, collected, fail, remote, those, values_of, warn, who
from ..host import Host, lines_of, number_in
from ..typed_facts import Facts, Request

ID = "neighbours"
GROUP = "network"
LEVEL = "quick"
BETWEEN_MACHINES = True
LIMIT = "/proc/sys/net/ipv4/neigh/default/gc_thresh3"
STATISTICS = "/proc/net/stat/arp_cache"
LABEL = "mtu-or-packet-loss"
NEARLY = 0.8  # of the limit: other neighbours (storage, gateways, services) come and go

Network = Tuple[int, int]  # bits for hosts, and what stands before them


class Table(NamedTuple):
    """The limit, entries now, and how often the table has overflowed since boot."""

    limit: int
    entries: int = 0
    full: int = 0


def collect(host: Host) -> Optional[Table]:
    """None where the kernel shows no limit. Entries are the same on every line, overflows are each CPU's own."""
    limit = number_in(host, LIMIT)
    if limit is None:
        return None
    lines = [line.split() for line in lines_of(host, STATISTICS)[:4097]] or [[]]
    head = lines[0]
    rows = [row for row in lines[1:] if len(row) == len(head)]
    if not rows or "entries" not in head or "table_fulls" not in head:
        return Table(limit)
    full = head.index("table_fulls")
    return Table(limit, int(rows[0][head.index("entries")], 16), sum(int(row[full], 16) for row in rows))


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """mtu-or-packet-loss: a failure where the nodes alone are too many, a warning where it has overflowed."""
    tables = those(collected(facts_by_node, ID, Table), lambda table: table.limit)
    needs = _shared(facts_by_node)
    small = {node: (needs[node], table.limit) for node, table in tables.items() if needs[node] > table.limit}
    for (need, limit), nodes in by_value(small).items():
        message = f"{who(nodes, 'shares', 'share')} networks with {need:,} addresses of the"
        message += f" other nodes, and the kernel keeps {limit:,} neighbours at most:"
        yield fail(LABEL, nodes, f"{message} packets will be lost", _remedy(nodes[0], need))
    tight = [node for node, table in tables.items() if node not in small and _overflows(table, needs[node])]
    if tight:
        worst = max(tight, key=lambda node: tables[node].full)
        one = tables[worst]
        up_to = plural(len(tight), "", "up to ")
        there = plural(len(tight), "", f" on {worst}")
        message = f"the kernel's table of neighbours on {join_names(tight)} has overflowed {up_to}{one.full:,} times"
        message += f" since boot ({one.entries:,} of {one.limit:,} in use{there}): packets were dropped"
        need = max(max(tables[node].entries, needs[node]) for node in tight)
        yield warn(LABEL, tight, message, _remedy(worst, need))


def _overflows(table: Table, need: int) -> bool:
    return bool(table.full) and max(need, table.entries) >= NEARLY * table.limit


def _remedy(node: str, need: int) -> str:
    """Set a limit with room for as many again, and the soft one at half of it."""
    limit = 1 << (2 * need).bit_length()
    settings = (f"net.ipv4.neigh.default.gc_thresh3={limit}", f"net.ipv4.neigh.default.gc_thresh2={limit // 2}")
    return f"on all nodes: {remote(node, 'sudo sysctl -w', *settings)} (and in /etc/sysctl.d, for the next boot)"


def _addresses(facts: Facts) -> Dict[int, Network]:
    networks = {}
    for _, one in facts.addresses:
        if one.family == 4 and one.scope == "global":
            address = int(IPv4Address(one.address))
            host_bits = 32 - one.prefix
            networks[address] = (host_bits, address >> host_bits)
    return networks


def _shared(facts_by_node: Nodes) -> Dict[str, int]:
    """How many addresses of other nodes lie on each node's own networks."""
    by_node = values_of(facts_by_node, _addresses)
    everywhere = {address for addresses in by_node.values() for address in addresses}
    sizes = {host_bits for addresses in by_node.values() for host_bits, _ in addresses.values()}
    members = Counter((host_bits, address >> host_bits) for host_bits in sizes for address in everywhere)
    counts = {}
    for node, addresses in by_node.items():
        networks = set(addresses.values())
        of_itself = Counter((bits, address >> bits) for bits in {bits for bits, _ in networks} for address in addresses)
        counts[node] = sum(members[network] - of_itself[network] for network in networks)
    return counts
