"""Packets as large as the interface's MTU pass between every pair.

An MTU black hole lets connections open and large messages vanish: a switch port, tunnel or overlay with a
smaller MTU and no ICMP "fragmentation needed" (RFC 2923). TCP: 256 KB must arrive; UDP without
fragmentation shows the size that passes (ip(7), IP_PMTUDISC_PROBE).
"""

from __future__ import annotations

from typing import List

from allranks.findings import Finding

from ..compare import Nodes, remote
from ..host import Record, Request
from ..pairs import Blame, Tried, blame, is_lossy, tried

ID = "mtu"
GROUP = "network"
LEVEL = "full"
NEEDS = "pairs"
BETWEEN_MACHINES = True


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """mtu-or-packet-loss: a failure where large messages hang, a warning where TCP can adapt."""
    pairs = tried(facts_by_node)
    hangs = blame(pairs, lambda pair, r: r.get("bulk") is False and not is_lossy(pairs, pair))
    hung = {pair for item in hangs for pair in item.pairs}
    smaller = blame(pairs, lambda pair, r: pair not in hung and _is_smaller(r) and not is_lossy(pairs, pair))
    findings = [_hangs(item, pairs, facts_by_node) for item in hangs]
    return findings + [_smaller(item, pairs, facts_by_node) for item in smaller]


def _is_smaller(result: Record) -> bool:
    """Both ends speak UDP, nothing was lost, and yet the full size did not arrive."""
    arrived = int(result.get("mtu_arrived") or 0)
    local = int(result.get("mtu_local") or 0)
    return bool(arrived) and result.get("arrived") == result.get("sent") and arrived < min(local, 65535)


def _hangs(item: Blame, pairs: Tried, facts: Nodes) -> Finding:
    pair = item.pairs[0]
    result = pairs[pair]
    passes = int(result.get("mtu_arrived") or 0)
    local = int(result.get("mtu_local") or 0)
    size = f"packets over {passes} of {local} bytes vanish" if passes and passes < local else "large messages vanish"
    message = f"{item.words()}: connections open, but {size} (an MTU black hole)"
    compare = f"compare the MTUs: ssh {pair[0]} ip link; ssh {pair[1]} ip link"
    remedy = _lower(item, pairs, facts, passes) if passes and passes < local else compare
    evidence = (f"{pair[0]} -> {pair[1]}: 256 KB not received within {result.get('bulk_s')} s",)
    return Finding("mtu-or-packet-loss", "fail", message[0].upper() + message[1:], remedy, item.where(), evidence)


def _smaller(item: Blame, pairs: Tried, facts: Nodes) -> Finding:
    pair = item.pairs[0]
    passes = int(pairs[pair]["mtu_arrived"])
    local = int(pairs[pair]["mtu_local"])
    message = f"{item.words()}: packets of {passes} bytes pass, those of {local} (the interface's MTU) do not"
    remedy = f"TCP can adapt, RDMA can't; {_lower(item, pairs, facts, passes)}"
    return Finding("mtu-or-packet-loss", "warn", message[0].upper() + message[1:], remedy, item.where())


def _lower(item: Blame, pairs: Tried, facts: Nodes, size: int) -> str:
    """On the node at fault, or the first of a link; with the interface it uses where that is known."""
    local_address = next((r.get("local_address") for (a, _), r in pairs.items() if a == item.node), None)
    interfaces = [
        str(i["name"])
        for i in facts[item.node].get("interfaces") or ()
        if any(a["address"] == local_address for a in i.get("addresses") or ())
    ]
    line = remote(item.node, "sudo", "ip", "link", "set", "dev", (interfaces or ["IFACE"])[0], "mtu", str(size))
    return f"let ICMP 'fragmentation needed' through, or use one MTU everywhere: {line}"
