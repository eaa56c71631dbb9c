"""How the time of each step divides, and which collectives stand in the open (pure). Seconds, from here on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from .collectives import Kind
from .trace import Collective, Trace, Window

MICRO = 1e-6
PARTS = ("computing", "communicating", "both", "copying", "idle")


@dataclass
class Split:
    """A span of time. `computing` and `communicating` each contain `both`; `copying` and `idle` lie beside them."""

    seconds: float = 0.0
    computing: float = 0.0
    communicating: float = 0.0
    both: float = 0.0
    copying: float = 0.0
    idle: float = 0.0

    @property
    def exposed(self) -> float:
        """Communication in the open: nothing is computed meanwhile."""
        return max(0.0, self.communicating - self.both)

    @property
    def hidden(self) -> float | None:
        """The part of communication that computation hides, 0 to 1; None without communication."""
        return self.both / self.communicating if self.communicating > 0 else None

    def to_json(self) -> dict[str, Any]:
        """With what follows from the others."""
        return {**asdict(self), "exposed": self.exposed, "hidden": self.hidden}


@dataclass(frozen=True)
class Step:
    """One step of one rank; `number` is None where the trace has no steps."""

    number: int | None
    split: Split


@dataclass
class Rank:
    """One trace, measured."""

    name: str
    trace: Trace
    steps: list[Step]
    mean: Split


@dataclass
class Group:
    """The collectives of one kind, on all ranks and in all steps."""

    kind: Kind
    count: int = 0
    seconds: float = 0.0
    exposed: float = 0.0  # while nothing is computed
    waiting: float = 0.0  # of `exposed`: until the last rank took part
    lengths: list[float] = field(default_factory=list)
    longest: tuple[float, str, int | None] = (0.0, "", None)  # seconds, rank, step

    @property
    def hidden(self) -> float:
        """The part that computation hides, 0 to 1."""
        return 1.0 - self.exposed / self.seconds if self.seconds > 0 else 1.0

    def to_json(self) -> dict[str, Any]:
        """Without the length of each of them."""
        seconds, rank, step = self.longest
        return {
            **self.kind._asdict(), "ranks": list(self.kind.ranks), "count": self.count, "seconds": self.seconds,
            "exposed": self.exposed, "hidden": self.hidden, "waiting": self.waiting,
            "median": median(self.lengths) if self.lengths else 0.0,
            "longest": {"seconds": seconds, "rank": rank, "step": step},
        }  # fmt: skip


@dataclass
class Overlap:
    """The whole answer: `mean` is that of a rank's step; `groups` begin with the one that costs most."""

    ranks: list[Rank]
    mean: Split
    groups: list[Group]
    waited_for: Mapping[str, float]  # seconds that others waited, by the rank that came last

    @property
    def steps(self) -> int:
        """On all ranks together."""
        return sum(len(rank.steps) for rank in self.ranks)


def measure(traces: Sequence[Trace]) -> Overlap:
    """Of these traces, one a rank as a rule."""
    ordered = sorted(traces, key=lambda t: (t.rank is None, t.rank or 0, t.file))
    often = Counter(t.rank for t in ordered)
    ranks = []
    for trace in ordered:
        steps = [Step(w.number, split(trace, w)) for w in trace.windows]
        alone = trace.rank is not None and often[trace.rank] == 1
        file = trace.file.replace("\\", "/").split("/")[-1]
        name = f"rank {trace.rank}" if alone else file if trace.rank is None else f"rank {trace.rank} ({file})"
        ranks.append(Rank(name, trace, steps, mean_of([s.split for s in steps])))
    groups, waited_for = grouped(ranks)
    return Overlap(ranks, mean_of([s.split for rank in ranks for s in rank.steps]), groups, waited_for)


def split(trace: Trace, window: Window) -> Split:
    """Where the time between two moments went."""
    start, end = window.start, window.end
    computing = trace.computing.within(start, end)
    communicating = trace.communicating.within(start, end)
    both = trace.communicating.shared(trace.computing, start, end)
    busy = computing + communicating - both
    copying = 0.0
    if trace.copying.pairs:
        inside = [p for p in trace.copying.pairs if p[1] > start and p[0] < end]
        copying = sum(_alone(trace, max(start, s), min(end, e)) for s, e in inside)
    parts = (end - start, computing, communicating, both, copying, max(0.0, end - start - busy - copying))
    return Split(*(MICRO * part for part in parts))


def _alone(trace: Trace, start: float, end: float) -> float:
    """The part of a copy during which there's neither computation nor communication."""
    covered = trace.computing.within(start, end) + trace.communicating.within(start, end)
    return end - start - covered + trace.communicating.shared(trace.computing, start, end)


def mean_of(splits: Sequence[Split]) -> Split:
    """Of several; of none, all zero."""
    if not splits:
        return Split()
    return Split(*(sum(getattr(s, name) for s in splits) / len(splits) for name in ("seconds", *PARTS)))


def grouped(ranks: Iterable[Rank]) -> tuple[list[Group], dict[str, float]]:
    """Collectives by kind, what stands in the open longest first; and whom the others waited for."""
    groups: dict[Kind, Group] = {}
    calls: dict[tuple[Kind, int | None], dict[str, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    exposed: dict[str, dict[Collective, float]] = {}
    for rank in ranks:
        trace, of_rank = rank.trace, exposed.setdefault(rank.name, {})
        for number, collective in within_windows(trace):
            start, end, kind = collective
            key = kind._replace(ranks=())  # the same on each node
            group = groups.setdefault(key, Group(key))
            length = MICRO * (end - start)
            of_rank[collective] = MICRO * (end - start - trace.computing.within(start, end))
            group.count += 1
            group.seconds += length
            group.exposed += of_rank[collective]
            group.lengths.append(length)
            group.longest = max(group.longest, (length, rank.name, number), key=lambda found: found[0])
            calls[kind, number][rank.name].append(collective)
    waited_for: dict[str, float] = defaultdict(float)
    for (kind, _), by_rank in calls.items():
        groups[kind._replace(ranks=())].waiting += _waited(by_rank, exposed, waited_for)
    return sorted(groups.values(), key=lambda g: (-g.exposed, -g.seconds, g.kind.name)), waited_for


def within_windows(trace: Trace) -> Iterable[tuple[int | None, Collective]]:
    """Each collective with the step in which it begins; those outside of all steps are left out."""
    windows, at = trace.windows, 0
    for collective in trace.collectives:
        while at < len(windows) and windows[at].end <= collective.start:
            at += 1
        if at == len(windows):
            return
        if windows[at].start <= collective.start:
            yield windows[at].number, collective


def _waited(
    by_rank: Mapping[str, list[Collective]], exposed: Mapping[str, Mapping[Collective, float]], late: dict[str, float]
) -> float:
    """Seconds in the open until the last rank took part: its own collective was the shortest, and clocks don't matter.

    Only where each rank has as many of this kind, so that the first of one is the first of another.
    """
    if len(by_rank) < 2 or len({len(calls) for calls in by_rank.values()}) > 1:
        return 0.0
    total = 0.0
    for same in zip(*by_rank.values(), strict=True):
        lengths = {name: MICRO * (c.end - c.start) for name, c in zip(by_rank, same, strict=True)}
        last = min(lengths, key=lengths.__getitem__)
        for name, collective in zip(by_rank, same, strict=True):
            waited = min(lengths[name] - lengths[last], exposed[name][collective])
            total += waited
            late[last] += waited
    return total
