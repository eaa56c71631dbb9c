"""No packets are lost between any two nodes.

TCP over a link that loses 1 % runs at a small part of its rate (Mathis et al. 1997: rate ~ 1/sqrt(loss)).
With 10 % collectives time out.
"""

from __future__ import annotations

from allranks.findings import Finding, Status

from ..compare import Findings, Nodes, nodes_with, remote, unknown
from ..peer_pairs import blame, loses, loss_of, tried
from ..typed_facts import Request

ID = "packet_loss"
GROUP = "network"
LEVEL = "full"
NEEDS = "pairs"
BETWEEN_MACHINES = True
MUCH = 0.1


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """mtu-or-packet-loss; `unknown` where UDP does not pass at all while TCP does."""
    pairs = tried(facts_by_node)
    for item in blame(pairs, lambda pair, result: loses(result)):
        most = max(loss_of(pairs[pair]) for pair in item.pairs)
        amount = f"{most:.0%}" if most >= 0.02 else f"{most:.1%}"
        a, b = item.pairs[0]
        show = f"{remote(a, 'ip -s link')} (errors, dropped)"
        remedy = f"look at cables, optics and switch ports between {a} and {b}: {show}"
        sent = pairs[item.pairs[0]].sent
        evidence = tuple(f"{x} -> {y}: {pairs[(x, y)].arrived} of {sent} arrived" for x, y in item.pairs[:6])
        status: Status = "fail" if most >= MUCH else "warn"
        message = f"{amount} of packets are lost {item.words()}"
        yield Finding("mtu-or-packet-loss", status, message, remedy, item.where(), evidence)
    silent = nodes_with(pairs, lambda result: result.way.ok and result.sent and not result.arrived)
    if silent:
        a, b = silent[0]
        message = f"UDP does not pass on {len(silent)} of {len(pairs)} ways (such as {a} to {b}): loss was not measured"
        yield unknown(ID, list(dict.fromkeys(node for pair in silent for node in pair)), message)
