"""Every node reaches every other on ports that the kernel picks, as NCCL and Gloo do."""

from __future__ import annotations

import ipaddress
from typing import Tuple

from allranks.findings import Finding, Where
from allranks.protocol.messages import PeerResult

from ..compare import Findings, Nodes, remote
from ..peer_pairs import Blame, Pair, Tried, blame, is_lossy, tried
from ..typed_facts import Facts, Request

ID = "ports"
GROUP = "network"
LEVEL = "full"
NEEDS = "pairs"
BETWEEN_MACHINES = True
AT_ONCE = 0.9  # seconds: the kernel's own search for a neighbour takes longer


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """port-blocked where the host answers otherwise; else node-network-down: no way to it at all.

    Where the connection stood and no word came, the network is not at fault: the peer was too busy to say.
    """
    pairs = tried(facts_by_node)
    failed = {pair: result for pair, result in pairs.items() if not result.way.ok and not is_lossy(pairs, pair)}
    for (a, b), result in failed.items():
        if _is_mute(result):  # the kernel of the peer took the connection, its program did not answer
            message = f"{a} connected to {b}, which gave no answer within {result.way.seconds or 0:g} s"
            remedy = f"see whether {b} is overloaded, and check again when it is not"
            yield Finding(ID, "unknown", message, remedy, Where(node=a, peer=b), (_evidence((a, b), result),))
    for item in blame(pairs, lambda pair, result: pair in failed and not _is_mute(result)):
        is_blocked, why = _cause(item, pairs, facts_by_node)
        message = f"no TCP connection {item.words()}{why}"
        evidence = tuple(_evidence(pair, pairs[pair]) for pair in item.pairs[:6])
        a, b = item.pairs[0]
        if is_blocked:
            remedy = _remedy(item, facts_by_node, pairs)
            yield Finding("port-blocked", "fail", message, remedy, item.where(), evidence)
        else:
            route = remote(a, f"ip route get {pairs[(a, b)].way.address}")
            remedy = f"see the route ({route}), and whether the link of {b} is up ({remote(b, 'ip -br link')})"
            yield Finding("node-network-down", "fail", message, remedy, item.where(), evidence)


def _is_mute(result: PeerResult) -> bool:
    return result.way.error == "timeout" and result.connect_s is not None


def _cause(item: Blame, pairs: Tried, facts_by_node: Nodes) -> Tuple[bool, str]:
    """Whether a port is blocked (else nothing gets there), and the words for it."""
    a, b = item.pairs[0]
    result = pairs[(a, b)]
    way = result.way
    answered = pairs.get((b, a), PeerResult()).way.ok
    aside = ""
    if b == next(iter(facts_by_node)) and any(probe.ok for probe in facts_by_node[a].probes):
        aside = f" (the master port of {b} is open to {a})"
    if way.error == "refused":
        return True, f": a port that listens refuses, so a firewall rejects it{aside}"
    if way.error == "unreachable" and (way.seconds or 0.0) < AT_ONCE:
        return True, f": {way.text} at once, so a firewall rejects it{aside}"
    if way.error != "timeout":
        return False, f": {way.text or way.error}"
    if not (result.arrived or answered or aside):
        return True, " and no answer at all: a firewall drops it, or the link is dead"
    if answered and item.kind == "way" and not aside:
        aside = f" ({b} reaches {a})"
    return True, f": no answer, as where a firewall drops it{aside}"


def _evidence(pair: Pair, result: PeerResult) -> str:
    way = result.way
    return f"{pair[0]} -> {pair[1]} {way.address}: {way.error} after {way.seconds or 0:g} s"


def _remedy(item: Blame, facts_by_node: Nodes, pairs: Tried) -> str:
    """Lines for a firewall on the node that is entered; a way out of a node is closed on that node itself."""
    if item.kind == "out of":
        return f"look at the outgoing rules: ssh {item.node} sudo nft list ruleset (or iptables -S OUTPUT)"
    a, b = item.pairs[0]
    source = _source(facts_by_node[a], pairs, a) or "NETWORK"
    line = f"on {b}: sudo ufw allow from {source} to any proto tcp"
    line += f" (or sudo firewall-cmd --zone=trusted --add-source={source})"
    return f"{line}. NCCL and Gloo take any high port, so the master port alone is not enough"


def _source(facts: Facts, pairs: Tried, node: str) -> str:
    """Find the subnet of the node that wants in, else its address as its peers know it."""
    known_as = next((result.way.address for (_, to), result in pairs.items() if to == node), "")
    for _, address in facts.addresses:
        if address.address == known_as:
            return str(ipaddress.ip_network(f"{known_as}/{address.prefix}", strict=False))
    return known_as
