"""Clock offsets between this machine and a node, from the quickest round trips (pure)."""

from __future__ import annotations


class Clock:
    """`offset` is the node's clock minus ours, in seconds; the best of the samples with least delay."""

    def __init__(self) -> None:
        self.offset = 0.0
        self.delay: float | None = None

    def sample(self, sent: float, node_time: float, received: float) -> None:
        """A ping was answered: sent and received on our clock, answered at node_time on the node's."""
        delay = received - sent
        if delay < 0:
            return
        if self.delay is None or delay <= self.delay:
            self.delay = delay
            self.offset = node_time - (sent + received) / 2
        else:
            self.delay += 0.001  # drift: an old best sample slowly loses its weight

    def correct(self, node_time: float) -> float:
        """A time of the node's clock on ours."""
        return node_time - self.offset
