"""Every node reaches every other on ports that the kernel picks, as NCCL and Gloo do."""

from __future__ import annotations

import ipaddress
from typing import List, Tuple

from allranks.findings import Finding, Where

from ..compare import Facts, Nodes
from ..host import Record, Request
from ..pairs import Blame, Tried, blame, is_lossy, tried

ID = "ports"
GROUP = "network"
LEVEL = "full"
NEEDS = "pairs"
BETWEEN_MACHINES = True


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """port-blocked where the host answers otherwise; else the check's own ID: no way to it at all.

    Where the connection stood and no word came, the network is not at fault: the peer was too busy to say.
    """
    pairs = tried(facts_by_node)
    findings = [_mute(pair, r) for pair, r in pairs.items() if _is_mute(r) and not is_lossy(pairs, pair)]
    for item in blame(pairs, lambda pair, r: not r.get("ok") and not _is_mute(r) and not is_lossy(pairs, pair)):
        result = pairs[item.pairs[0]]
        blocked, why = _cause(item, result, pairs, facts_by_node)
        message = f"no TCP connection {item.words()}{why}"
        evidence = tuple(_evidence(pair, pairs[pair]) for pair in item.pairs[:6])
        remedy = _remedy(item, facts_by_node, pairs) if blocked else _look_at(item, pairs)
        cause = "port-blocked" if blocked else ID
        findings.append(Finding(cause, "fail", message, remedy, item.where(), evidence))
    return findings


def _is_mute(result: Record) -> bool:
    return not result.get("ok") and result.get("error") == "timeout" and "connect_s" in result


def _mute(pair: Tuple[str, str], result: Record) -> Finding:
    """The kernel of the peer took the connection, its program did not answer."""
    message = f"{pair[0]} connected to {pair[1]}, which gave no answer within {result.get('seconds')} s"
    return Finding(
        ID,
        "unknown",
        message,
        f"is {pair[1]} overloaded? look again when it is not",
        Where(node=pair[0], peer=pair[1]),
        (_evidence(pair, result),),
    )


def _cause(item: Blame, result: Record, pairs: Tried, facts: Nodes) -> Tuple[bool, str]:
    """Whether a port is blocked (else nothing gets there), and the words for it."""
    a, b = item.pairs[0]
    error = str(result.get("error"))
    gate = any(p.get("ok") for p in facts[a].get("probes") or ())
    master = next(iter(facts))
    open_port = f"; the master port of {b} is open to {a}" if gate and b == master else ""
    if error == "refused":
        return True, f": a port that listens refuses, so a firewall rejects it{open_port}"
    if error == "unreachable" and float(result.get("seconds") or 0) < 0.9:
        return True, f": {result.get('text')} at once, so a firewall rejects it{open_port}"
    back = (pairs.get((b, a)) or {}).get("ok")
    answers = bool(result.get("arrived")) or bool(back) or bool(open_port)
    if error == "timeout" and answers:
        other = f"; {b} reaches {a}" if back and item.kind == "way" else ""
        return True, f": no answer, as where a firewall drops it{open_port or other}"
    if error == "timeout":
        return True, ": no answer at all: a firewall drops it, or the link is dead"
    return False, f": {result.get('text') or error}"


def _evidence(pair: Tuple[str, str], result: Record) -> str:
    return f"{pair[0]} -> {pair[1]} {result.get('address')}: {result.get('error')} after {result.get('seconds')} s"


def _remedy(item: Blame, facts: Nodes, pairs: Tried) -> str:
    """Lines for a firewall on the node that is entered; a way out of a node is closed on that node itself."""
    if item.kind == "out of":
        return f"look at the outgoing rules: ssh {item.node} sudo nft list ruleset (or iptables -S OUTPUT)"
    a, b = item.pairs[0]
    source = _source(facts[a], pairs, a) or "NETWORK"
    other = f"sudo firewall-cmd --zone=trusted --add-source={source}"
    line = f"on {b}: sudo ufw allow from {source} to any proto tcp (or: {other})"
    return f"{line}; NCCL and Gloo take any high port, so the master port alone is not enough"


def _source(facts: Facts, pairs: Tried, node: str) -> str:
    """The subnet of the node that wants in, else its address as its peers know it."""
    address_of_node = next((r.get("address") for (_, to), r in pairs.items() if to == node), None)
    for interface in facts.get("interfaces") or ():
        for address in interface.get("addresses") or ():
            if address["address"] == address_of_node:
                return str(ipaddress.ip_network(f"{address_of_node}/{address['prefix']}", strict=False))
    return str(address_of_node or "")


def _look_at(item: Blame, pairs: Tried) -> str:
    address = pairs[item.pairs[0]].get("address")
    return f"ssh {item.pairs[0][0]} ip route get {address}; is the link of {item.pairs[0][1]} up: ip -br link"
