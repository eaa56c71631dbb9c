"""Sets of moments: unions of intervals, and how much of another interval they cover (pure). Any unit of time."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

Interval = tuple[float, float]
COMPACT = 1 << 18  # intervals: more are merged first


class Spans:
    """A union of intervals that grows; events of one thread come nearly in order, so that most merge at once."""

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self.starts = array("d")
        self.ends = array("d")
        self._totals = array("d")  # of all intervals before each, once it is asked for
        self._limit = COMPACT
        self._sorted = True
        for start, end in intervals:
            self.add(start, end)

    def add(self, start: float, end: float) -> None:
        """Take in one more interval; empty ones are left out."""
        if end <= start:
            return
        if self.starts:
            if self.starts[-1] <= start <= self.ends[-1]:
                self.ends[-1] = max(end, self.ends[-1])
                return
            self._sorted = self._sorted and start > self.ends[-1]
        self.starts.append(start)
        self.ends.append(end)
        if len(self.starts) > self._limit:
            self.intervals()
            self._limit = max(COMPACT, 2 * len(self.starts))

    def intervals(self) -> list[Interval]:
        """Give the union in order; no interval touches another."""
        if not self._sorted:
            merged = Spans(sorted(zip(self.starts, self.ends, strict=True)))
            self.starts = merged.starts
            self.ends = merged.ends
            self._sorted = True
        return list(zip(self.starts, self.ends, strict=True))

    def within(self, start: float, end: float) -> float:
        """Measure how much of an interval lies in the union; nothing may be added from then on."""
        if end <= start:
            return 0.0
        if not self._totals:
            self._totals.extend(accumulate((last - first for first, last in self.intervals()), initial=0.0))
        return max(0.0, self._until(end) - self._until(start))

    def _until(self, moment: float) -> float:
        """Measure all that lies before a moment."""
        position = bisect_right(self.starts, moment)
        if not position:
            return 0.0
        last = min(moment, self.ends[position - 1])
        return self._totals[position - 1] + last - self.starts[position - 1]


def union(parts: Iterable[Spans]) -> Spans:
    """Give what is in any of these."""
    return Spans(sorted(interval for part in parts for interval in part.intervals()))


def without(kept: Spans, removed: Spans) -> Spans:
    """Give what is in the one and not in the other."""
    rest = Spans()
    holes = removed.intervals()
    first = 0
    for start, end in kept.intervals():
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        hole = first
        while hole < len(holes) and holes[hole][0] < end:
            rest.add(start, holes[hole][0])
            start = max(start, holes[hole][1])
            hole += 1
        rest.add(start, end)
    return rest


def intersection(one: Spans, other: Spans) -> Spans:
    """Give what is in both."""
    return without(one, without(one, other))
