"""Pairs of nodes that try to reach each other: which are tried, which failed, and who is to blame. Pure.

All pairs of few nodes; of many, enough that every node is tried by several. A fault of a node shows on all pairs into
it, or out of it; a fault of one link on one pair.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Sequence, Set, Tuple, TypeVar

from allranks.findings import Where
from allranks.protocol.messages import PeerResult
from allranks.protocol.records import NamedTuple
from allranks.text import join_names

from .typed_facts import Facts

ALL_PAIRS = 32  # nodes; beyond, `FEWER` others each: the work of a node must not grow with the cluster
FEWER = 4
LOSSY = 0.01  # of the packets; below, a busy machine may have dropped them itself
FEWEST = 3

Pair = Tuple[str, str]
Tried = Mapping[Pair, PeerResult]
Kind = TypeVar("Kind")


# -- who tries whom --------------------------------------------------------------------------------


def peers_of(nodes: Sequence[str]) -> Dict[str, List[str]]:
    """Choose the peers each node tries to reach, in an order that spreads the work over the peers.

    Up to `ALL_PAIRS` nodes that is every other one. Beyond, the next, and those at growing distances: every
    node tries `FEWER` others and is tried by as many.
    """
    count = len(nodes)
    steps = list(range(1, count))
    if count > ALL_PAIRS:
        steps = [1 + (count - 2) * k // FEWER for k in range(FEWER)]
    return {node: [nodes[(at + step) % count] for step in steps] for at, node in enumerate(nodes)}


def covered(nodes: int) -> str:
    """Say what the schedule leaves out; empty where it is nothing."""
    if nodes <= ALL_PAIRS:
        return ""
    return f"each of {nodes} nodes tried {FEWER} others and was tried by {FEWER} (all pairs up to {ALL_PAIRS} nodes)"


# -- what failed -----------------------------------------------------------------------------------


class Blame(NamedTuple):
    """Failed pairs with one explanation: `kind` is "node" (all into and out of it), "into" a node, "out of" a
    node, "link" (both ways) or "way" (one way of a link)."""

    kind: str
    node: str
    others: Tuple[str, ...]
    pairs: Tuple[Pair, ...]

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
        """Return the node at fault, or both ends of a link."""
        if self.kind in ("node", "into", "out of"):
            return Where(node=self.node)
        return Where(node=self.node, peer=self.others[0])


def tried(facts_by_node: Mapping[str, Facts]) -> Dict[Pair, PeerResult]:
    """(from, to) → the result, for all pairs that were tried."""
    return {(node, peer): result for node, facts in facts_by_node.items() for peer, result in facts.pairs.items()}


def loss_of(result: PeerResult) -> float:
    """Give the part of UDP packets that did not arrive; 0 where it could not be measured."""
    if result.sent and result.arrived:
        return (result.sent - result.arrived) / result.sent
    return 0.0


def loses(result: PeerResult) -> bool:
    """Tell whether more packets are lost than a busy machine drops itself."""
    return loss_of(result) >= LOSSY and result.sent - result.arrived >= FEWEST


def is_lossy(pairs: Tried, pair: Pair) -> bool:
    """Either way of a link loses packets: what else failed on it follows from that."""
    return any(loses(pairs.get(way, PeerResult())) for way in (pair, (pair[1], pair[0])))


def blame(pairs: Mapping[Pair, Kind], is_bad: Callable[[Pair, Kind], bool]) -> List[Blame]:
    """Explains the bad pairs: by nodes first (all that was tried into or out of one failed, from at least two
    others), then by links."""
    bad = [pair for pair, result in pairs.items() if is_bad(pair, result)]
    failed = set(bad)
    tried_by: Dict[str, List[Pair]] = {}
    tried_into: Dict[str, List[Pair]] = {}
    for pair in pairs:
        tried_by.setdefault(pair[0], []).append(pair)
        tried_into.setdefault(pair[1], []).append(pair)
    blames: List[Blame] = []
    for node, ways_out in tried_by.items():
        out = _all_failed(ways_out, failed)
        into = _all_failed(tried_into.get(node, []), failed)
        if out or into:
            kind = "out of" if out else "into"
            if out and into:
                kind = "node"
            others = dict.fromkeys([pair[1] for pair in out] + [pair[0] for pair in into])
            blames.append(Blame(kind, node, tuple(others), (*out, *into)))
    left = failed - {pair for item in blames for pair in item.pairs}
    for a, b in bad:
        if (a, b) not in left:
            continue  # explained, or the way back of a link
        if (b, a) in left:
            blames.append(Blame("link", a, (b,), ((a, b), (b, a))))
        else:
            blames.append(Blame("way", a, (b,), ((a, b),)))
        left.discard((b, a))
    return blames


def _all_failed(ways: List[Pair], failed: Set[Pair]) -> List[Pair]:
    if len(ways) > 1 and failed.issuperset(ways):
        return ways
    return []
