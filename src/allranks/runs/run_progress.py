"""How far a run is, from the states of its ranks: step, rate, time that is left (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .documents import NodeStatus

LONGEST = 1e15  # seconds: beyond, a rate is as good as none


class RunProgress(NamedTuple):
    """The step of the rank that is behind, the furthest one, the lowest rate (steps a second), and the steps in all."""

    step: int | None = None
    furthest: int | None = None
    rate: float | None = None
    total: int | None = None

    @classmethod
    def of(cls, nodes: Iterable[NodeStatus]) -> RunProgress:
        """Take the figures of all ranks; the total only where all that say one agree."""
        ranks = [rank for node in nodes for rank in node.ranks]
        steps = [rank.step for rank in ranks if rank.step is not None]
        rates = [rank.rate for rank in ranks if rank.rate is not None]
        totals = {rank.total_steps for rank in ranks if rank.total_steps is not None}
        total = totals.pop() if len(totals) == 1 else None
        return cls(min(steps, default=None), max(steps, default=None), min(rates, default=None), total)

    @property
    def seconds_left(self) -> float | None:
        """Estimate the seconds to the last step at the present rate; None where total or rate is unknown."""
        if self.total is None or self.step is None or not self.rate or self.step > self.total:
            return None
        seconds = (self.total - self.step) / self.rate
        if seconds < LONGEST:
            return seconds
        return None

    @property
    def step_text(self) -> str:
        """Write `412`, `412/1000`, or nothing.

        >>> Progress(412, 413, 2.0, 1000).step_text, Progress(412).step_text, Progress().step_text
        ('412/1000', '412', '')
        """
        if self.step is None:
            return ""
        if self.total is not None:
            return f"{self.step}/{self.total}"
        return str(self.step)
