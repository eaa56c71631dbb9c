"""Reading what nodes found when they tried each other: which pairs failed, and who is to blame. Pure.

A fault of a node shows on all pairs into it, or out of it; a fault of one link on one pair.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypeVar

from allranks.findings import Where
from allranks.protocol.codec import decode_parts
from allranks.text import join_names

LOSSY = 0.01  # of the packets; below, a busy machine may have dropped them itself
FEWEST = 3

Pair = Tuple[str, str]
Kind = TypeVar("Kind")


class PeerAttempt(NamedTuple):
    """An attempt at one of a peer's addresses."""

    ok: bool = False
    address: str = ""
    local_address: str = ""


class Result(NamedTuple):
    """One node's attempt at another, as `allranks.agent.peers` makes it: TCP, then packets of UDP, then sizes."""

    ok: bool = False
    address: str = ""
    local_address: str = ""
    error: str = ""
    text: str = ""
    seconds: float = 0.0
    connect_s: Optional[float] = None
    bulk: Optional[bool] = None
    bulk_s: Optional[float] = None
    sent: int = 0
    arrived: int = 0
    mtu_arrived: int = 0
    mtu_local: int = 0
    ways: List[PeerAttempt] = []

    @property
    def loss(self) -> float:
        """The part of UDP packets that did not arrive; 0 where it could not be measured."""
        return (self.sent - self.arrived) / self.sent if self.sent and self.arrived else 0.0

    @property
    def loses(self) -> bool:
        """More packets than a busy machine drops itself."""
        return self.loss >= LOSSY and self.sent - self.arrived >= FEWEST


Tried = Mapping[Pair, Result]


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
        """The node at fault, or both ends of a link."""
        if self.kind in ("node", "into", "out of"):
            return Where(node=self.node)
        return Where(node=self.node, peer=self.others[0])


def tried(facts_by_node: Mapping[str, Mapping[str, object]]) -> Dict[Pair, Result]:
    """(from, to) → the result, for all pairs that were tried."""
    results = {}
    for node, facts in facts_by_node.items():
        pairs = facts.get("pairs")
        for peer, result in pairs.items() if isinstance(pairs, dict) else ():
            results[(node, peer)] = decode_parts(Result, result)
    return results


def is_lossy(pairs: Tried, pair: Pair) -> bool:
    """Either way of a link loses packets: what else failed on it follows from that."""
    return any(pairs.get(way, Result()).loses for way in (pair, (pair[1], pair[0])))


def blame(pairs: Mapping[Pair, Kind], is_bad: Callable[[Pair, Kind], bool]) -> List[Blame]:
    """Explains the bad pairs: by nodes first (all that was tried into or out of one failed, from at least two
    others), then by links."""
    bad = {pair for pair, result in pairs.items() if is_bad(pair, result)}
    blames: List[Blame] = []
    for node in dict.fromkeys(pair[0] for pair in pairs):
        sides = [[pair for pair in pairs if pair[side] == node] for side in (0, 1)]
        bad_sides = [len(side) > 1 and bad.issuperset(side) for side in sides]
        if any(bad_sides):
            kind = "out of" if bad_sides[0] else "into"
            if all(bad_sides):
                kind = "node"
            explained = [pair for at in (0, 1) if bad_sides[at] for pair in sides[at]]
            others = dict.fromkeys(pair[1] if pair[0] == node else pair[0] for pair in explained)
            blames.append(Blame(kind, node, tuple(others), tuple(explained)))
    bad -= {pair for item in blames for pair in item.pairs}
    for a, b in sorted(bad, key=list(pairs).index):
        if (a, b) not in bad:
            continue  # the way back of a link
        if (b, a) in bad:
            blames.append(Blame("link", a, (b,), ((a, b), (b, a))))
        else:
            blames.append(Blame("way", a, (b,), ((a, b),)))
        bad.discard((b, a))
    return blames
