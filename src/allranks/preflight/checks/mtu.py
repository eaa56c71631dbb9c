"""Packets as large as the interface's MTU pass between every pair.

An MTU black hole lets connections open and large messages vanish. Such is a switch port, tunnel or overlay with a
smaller MTU and no ICMP "fragmentation needed" (RFC 2923). TCP: 256 KB must arrive. UDP without
fragmentation shows the size that passes (ip(7), IP_PMTUDISC_PROBE).
"""

from __future__ import annotations

from allranks.findings import Finding
from allranks.protocol.messages import PeerResult

from ..compare import Findings, Nodes, remote
from ..peer_pairs import Blame, Tried, blame, is_lossy, tried
from ..typed_facts import Request

ID = "mtu"
GROUP = "network"
LEVEL = "full"
NEEDS = "pairs"
BETWEEN_MACHINES = True
LABEL = "mtu-or-packet-loss"
LARGEST = 65535


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """mtu-or-packet-loss: a failure where large messages hang, a warning where TCP can adapt."""
    pairs = tried(facts_by_node)
    hangs = blame(pairs, lambda pair, result: result.bulk is False and not is_lossy(pairs, pair))
    hung = {pair for item in hangs for pair in item.pairs}
    for item in hangs:
        yield _hangs(item, pairs, facts_by_node)
    for item in blame(pairs, lambda pair, r: pair not in hung and _is_smaller(r) and not is_lossy(pairs, pair)):
        result = pairs[item.pairs[0]]
        message = f"packets of {result.mtu_arrived} bytes pass {item.words()}, but those of {result.mtu_local} "
        message += "(the interface's MTU) do not"
        remedy = f"{_lower(item, pairs, facts_by_node, result.mtu_arrived)} (TCP can adapt, RDMA can't)"
        yield Finding(LABEL, "warn", message, remedy, item.where())


def _is_smaller(result: PeerResult) -> bool:
    return 0 < result.mtu_arrived < min(result.mtu_local, LARGEST) and result.arrived == result.sent


def _hangs(item: Blame, pairs: Tried, facts_by_node: Nodes) -> Finding:
    a, b = item.pairs[0]
    result = pairs[item.pairs[0]]
    if 0 < result.mtu_arrived < result.mtu_local:
        what = f"packets over {result.mtu_arrived} of {result.mtu_local} bytes vanish"
        remedy = _lower(item, pairs, facts_by_node, result.mtu_arrived)
    else:
        what = "large messages vanish"
        remedy = f"compare the MTUs: {remote(a, 'ip link')} and {remote(b, 'ip link')}"
    message = f"connections open {item.words()}, but {what} (an MTU black hole)"
    evidence = (f"{a} -> {b}: 256 KB not received within {result.bulk_s} s",)
    return Finding(LABEL, "fail", message, remedy, item.where(), evidence)


def _lower(item: Blame, pairs: Tried, facts_by_node: Nodes, size: int) -> str:
    """On the node at fault, or the first of a link; with the interface it uses where that is known."""
    local = next((result.way.local_address for (a, _), result in pairs.items() if a == item.node), "")
    addresses = facts_by_node[item.node].addresses
    name = next((one.name for one, address in addresses if address.address == local), "IFACE")
    line = remote(item.node, f"sudo ip link set dev {name} mtu {size}")
    return f"let ICMP 'fragmentation needed' through, or use one MTU everywhere: {line}"
