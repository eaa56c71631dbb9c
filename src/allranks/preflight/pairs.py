"""Reading what nodes found when they tried each other: which pairs failed, and who is to blame. Pure.

A fault of a node shows on all pairs into it, or out of it; a fault of one link on one pair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, List, Tuple

from allranks.findings import Where
from allranks.text import join_names

from .compare import Nodes
from .host import Record

LOSSY = 0.01  # of the packets; below, a busy machine may have dropped them itself
FEWEST = 3

Pair = Tuple[str, str]
Tried = Dict[Pair, Record]


@dataclass(frozen=True)
class Blame:
    """Failed pairs with one explanation: `kind` is "node" (all into and out of it), "into" a node, "out of" a
    node, "link" (both ways) or "way" (one way of a link)."""

    kind: str
    node: str
    others: Tuple[str, ...]
    pairs: Tuple[Pair, ...] = field(repr=False)

    def words(self) -> str:
        """`from h1, h2 and h4 to h3`, `between h1 and h3`."""
        if self.kind == "node":
            return f"between {self.node} and {join_names(self.others)}"
        if self.kind == "into":
            return f"from {join_names(self.others)} to {self.node}"
        if self.kind == "link":
            return f"between {self.node} and {self.others[0]}, both ways"
        return f"from {self.node} to {join_names(self.others)}"

    def where(self) -> Where:
        """The node at fault, or both ends of a link."""
        if self.kind in ("node", "into", "out of"):
            return Where(node=self.node)
        return Where(node=self.node, peer=self.others[0])


def tried(facts_by_node: Nodes) -> Tried:
    """(from, to) → the result, for all pairs that were tried."""
    results: Tried = {}
    for node, facts in facts_by_node.items():
        for peer, result in (facts.get("pairs") or {}).items():
            results[(node, peer)] = result
    return results


def loss(result: Record) -> float:
    """The part of UDP packets that did not arrive; 0 where it could not be measured."""
    sent = int(result.get("sent") or 0)
    arrived = int(result.get("arrived") or 0)
    return (sent - arrived) / sent if sent and arrived else 0.0


def is_lossy(pairs: Tried, pair: Pair) -> bool:
    """Either way of a link loses packets: what else failed on it follows from that."""
    both = [pairs.get(pair) or {}, pairs.get((pair[1], pair[0])) or {}]
    return any(loss(r) >= LOSSY and int(r["sent"]) - int(r["arrived"]) >= FEWEST for r in both)


def blame(pairs: Tried, is_bad: Callable[[Pair, Record], bool]) -> List[Blame]:
    """Explains the bad pairs: by nodes first (all that was tried into or out of one failed, from at least two
    others), then by links."""
    bad = {pair for pair, result in pairs.items() if is_bad(pair, result)}
    blames: List[Blame] = []
    for node in dict.fromkeys(pair[0] for pair in pairs):
        sides = [[p for p in pairs if p[side] == node] for side in (0, 1)]
        all_bad = [len(side_pairs) > 1 and all(p in bad for p in side_pairs) for side_pairs in sides]
        if any(all_bad):
            kind = "out of" if all_bad[0] else "into"
            if all(all_bad):
                kind = "node"
            side_pairs = [p for side in (0, 1) if all_bad[side] for p in sides[side]]
            others = dict.fromkeys(p[1] if p[0] == node else p[0] for p in side_pairs)
            blames.append(Blame(kind, node, tuple(others), tuple(side_pairs)))
    bad -= {pair for item in blames for pair in item.pairs}
    for a, b in sorted(bad, key=list(pairs).index):
        if (a, b) not in bad:
            continue
        back = (b, a) in bad
        blames.append(Blame("link" if back else "way", a, (b,), ((a, b), (b, a)) if back else ((a, b),)))
        bad -= {(a, b), (b, a)}
    return blames
