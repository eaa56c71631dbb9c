"""Sets of moments: unions of intervals, and how much of another interval they cover (pure). Any unit of time."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable

Pairs = Iterable[tuple[float, float]]
COMPACT = 1 << 18  # intervals: more are merged first


class Spans:
    """A union of intervals that grows; events of one thread come nearly in order, so that most merge at once."""

    def __init__(self, pairs: Pairs = ()) -> None:
        self._starts, self._ends = array("d"), array("d")
        self._limit = COMPACT
        self._sorted = True
        for start, end in pairs:
            self.add(start, end)

    def add(self, start: float, end: float) -> None:
        """One more; empty ones are left out."""
        if end <= start:
            return
        if self._starts and self._starts[-1] <= start <= self._ends[-1]:
            self._ends[-1] = max(end, self._ends[-1])
            return
        self._sorted = self._sorted and (not self._starts or start > self._ends[-1])
        self._starts.append(start)
        self._ends.append(end)
        if len(self._starts) > self._limit:
            self.pairs()
            self._limit = max(COMPACT, 2 * len(self._starts))

    def pairs(self) -> list[tuple[float, float]]:
        """The union: in order, none touching another."""
        if not self._sorted:
            starts, ends = array("d"), array("d")
            for start, end in sorted(zip(self._starts, self._ends, strict=True)):
                if ends and start <= ends[-1]:
                    ends[-1] = max(end, ends[-1])
                else:
                    starts.append(start)
                    ends.append(end)
            self._starts, self._ends, self._sorted = starts, ends, True
        return list(zip(self._starts, self._ends, strict=True))

    def __bool__(self) -> bool:
        return bool(self._starts)


class Cover:
    """A union of intervals that is complete: asked often how much of an interval lies in it."""

    def __init__(self, *parts: Spans) -> None:
        merged = parts[0] if len(parts) == 1 else Spans(sorted(p for part in parts for p in part.pairs()))
        self.pairs = merged.pairs()
        self._starts = array("d", (start for start, _ in self.pairs))
        self._before = array("d", [0.0])
        for start, end in self.pairs:
            self._before.append(self._before[-1] + end - start)

    def within(self, start: float, end: float) -> float:
        """How much of this interval is covered."""
        return max(0.0, self._until(end) - self._until(start)) if end > start else 0.0

    def _until(self, moment: float) -> float:
        """All that is covered before a moment."""
        at = bisect_right(self._starts, moment)
        if not at:
            return 0.0
        first, last = self.pairs[at - 1]
        return self._before[at - 1] + min(moment, last) - first

    def shared(self, other: Cover, start: float, end: float) -> float:
        """How much of this interval both cover."""
        at = max(0, bisect_right(self._starts, start) - 1)
        total = 0.0
        while at < len(self.pairs) and self.pairs[at][0] < end:
            first, last = self.pairs[at]
            total += other.within(max(start, first), min(end, last))
            at += 1
        return total


def without(kept: Spans, removed: Spans) -> Spans:
    """What is in the one and not in the other."""
    rest, holes, at = Spans(), removed.pairs(), 0
    for start, end in kept.pairs():
        while at < len(holes) and holes[at][1] <= start:
            at += 1
        look = at
        while look < len(holes) and holes[look][0] < end:
            rest.add(start, holes[look][0])
            start = max(start, holes[look][1])
            look += 1
        rest.add(start, end)
    return rest
