"""No packets are lost between any two nodes.

TCP over a link that loses 1 % runs at a small part of its rate (Mathis et al. 1997: rate ~ 1/sqrt(loss));
with 10 % collectives time out.
"""

from __future__ import annotations

from typing import List

from allranks.findings import Finding, Status

from ..compare import Nodes, place
from ..host import Record, Request
from ..pairs import FEWEST, LOSSY, Blame, Tried, blame, loss, tried

ID = "packet_loss"
GROUP = "network"
LEVEL = "full"
NEEDS = "pairs"
BETWEEN_MACHINES = True
MUCH = 0.1


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """mtu-or-packet-loss; `unknown` where UDP does not pass at all while TCP does."""
    pairs = tried(facts_by_node)
    findings = [_lossy(item, pairs) for item in blame(pairs, lambda pair, r: _loses(r))]
    silent = [p for p, r in pairs.items() if r.get("ok") and r.get("sent") and not r.get("arrived")]
    if silent:
        nodes = list(dict.fromkeys(node for pair in silent for node in pair))
        a, b = silent[0]
        message = f"UDP does not pass on {len(silent)} of {len(pairs)} ways (such as {a} to {b}): loss was not measured"
        findings.append(Finding(ID, "unknown", message, "", place(nodes)))
    return findings


def _loses(result: Record) -> bool:
    lost = int(result.get("sent") or 0) - int(result.get("arrived") or 0)
    return loss(result) >= LOSSY and lost >= FEWEST


def _lossy(item: Blame, pairs: Tried) -> Finding:
    losses = [loss(pairs[pair]) for pair in item.pairs]
    status: Status = "fail" if max(losses) >= MUCH else "warn"
    sent = int(pairs[item.pairs[0]]["sent"])
    amount = f"{max(losses):.0%}" if max(losses) >= 0.02 else f"{max(losses):.1%}"
    message = f"{amount} of packets are lost {item.words()}"
    a, b = item.pairs[0]
    remedy = f"look at cables, optics and switch ports between {a} and {b}: ssh {a} ip -s link (errors, dropped)"
    evidence = tuple(f"{x} -> {y}: {pairs[(x, y)].get('arrived')} of {sent} arrived" for x, y in item.pairs[:6])
    return Finding("mtu-or-packet-loss", status, message, remedy, item.where(), evidence)
