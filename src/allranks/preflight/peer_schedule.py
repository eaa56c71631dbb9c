"""Who tries whom: all pairs of few nodes; of many, enough that every node is tried by several. Pure."""

from __future__ import annotations

from collections.abc import Sequence

ALL_PAIRS = 32  # nodes; beyond, `FEWER` others each: the work of a node must not grow with the cluster
FEWER = 4


def peers_of(nodes: Sequence[str]) -> dict[str, list[str]]:
    """The peers each node tries to reach, in an order that spreads the work over the peers.

    Up to `ALL_PAIRS` nodes that is every other one. Beyond, the next, and those at growing distances: every
    node tries `FEWER` others and is tried by as many.
    """
    count = len(nodes)
    steps = list(range(1, count))
    if count > ALL_PAIRS:
        steps = [1 + (count - 2) * k // FEWER for k in range(FEWER)]
    return {node: [nodes[(at + step) % count] for step in steps] for at, node in enumerate(nodes)}


def covered(nodes: int) -> str:
    """What the schedule leaves out, in words; empty where it is all."""
    if nodes <= ALL_PAIRS:
        return ""
    return f"each of {nodes} nodes tried {FEWER} others and was tried by {FEWER} (all pairs up to {ALL_PAIRS} nodes)"
