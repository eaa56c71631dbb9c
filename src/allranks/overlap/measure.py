"""How the time of each step divides, and which collectives are exposed (pure). Seconds, from here on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import NamedTuple

from allranks.protocol.codec import spread

from .kernels import CollectiveKind
from .trace import Trace, Window, name_of

MICRO = 1e-6
MEETS = 0.25  # of a step, by which the ends of one step on two ranks may differ
PARTS = ("seconds", "computing", "communicating", "both", "copying", "idle")


@dataclass
class TimeSplit:
    """A span of time. `computing` and `communicating` each contain `both`; `copying` and `idle` lie beside them.

    `exposed` is communication while nothing is computed. `hidden` is the share of communication that
    computation hides, None without communication.
    """

    seconds: float = 0.0
    computing: float = 0.0
    communicating: float = 0.0
    both: float = 0.0
    copying: float = 0.0
    idle: float = 0.0
    exposed: float = field(init=False)
    hidden: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.exposed = max(0.0, self.communicating - self.both)
        if self.communicating > 0:
            self.hidden = self.both / self.communicating


@dataclass
class StepSplit(TimeSplit):
    """One step of one rank; `step` is None where the trace has no steps."""

    step: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class RankOverlap:
    """One trace, measured; `mean` is that of a step."""

    name: str
    rank: int | None
    file: str
    device: str
    events: int
    mean: TimeSplit
    notes: list[str]
    steps: list[StepSplit]


@dataclass(frozen=True)
class Longest:
    """The longest collective of its kind."""

    seconds: float
    rank: str
    step: int | None


@spread("kind")
@dataclass(frozen=True)
class CollectiveSummary:
    """The collectives of one kind, on all ranks and in all steps.

    `exposed`: while nothing is computed; `waiting`: of that, until the last rank took part; `hidden` is a share.
    """

    kind: CollectiveKind
    count: int
    seconds: float
    exposed: float
    hidden: float
    waiting: float
    median: float
    longest: Longest


@dataclass(frozen=True)
class Overlap:
    """The complete answer: `mean` is that of a rank's step; `collectives` begin with the one that costs most."""

    mean: TimeSplit
    steps: int  # of all ranks
    ranks: list[RankOverlap]
    collectives: list[CollectiveSummary]
    waited_for: dict[str, float]  # seconds that others waited, by the rank that came last


class CollectiveCall(NamedTuple):
    """One collective of one rank, in a step."""

    kind: CollectiveKind
    step: int | None
    lane: int
    rank: str
    seconds: float
    exposed: float
    waited: float = 0.0  # seconds for `last`, the rank that took part last
    last: str = ""


def measure(traces: Sequence[Trace], are_cut: bool = False) -> Overlap:
    """Measure these traces, one a rank as a rule. `are_cut`: each began in the midst of a run, where it came to it."""
    in_order = sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0, trace.file))
    traces = aligned(in_order, are_cut)
    traces_of_rank = Counter(trace.rank for trace in traces)
    ranks: list[RankOverlap] = []
    calls: list[CollectiveCall] = []
    for trace in traces:
        steps = [split(trace, window) for window in trace.windows]
        name = _name(trace, traces_of_rank[trace.rank])
        mean = mean_of(steps)
        ranks.append(
            RankOverlap(
                name,
                trace.rank,
                file=trace.file,
                device=trace.device,
                events=trace.events,
                mean=mean,
                notes=trace.notes,
                steps=steps,
            )
        )
        calls += _calls(trace, name)
    calls = list(_compared(calls))
    waited_for: dict[str, float] = defaultdict(float)
    for call in calls:
        waited_for[call.last] += call.waited
    waited_for.pop("", None)
    all_steps = [step for rank in ranks for step in rank.steps]
    return Overlap(mean_of(all_steps), len(all_steps), ranks, _summaries(calls), waited_for)


def aligned(traces: Sequence[Trace], are_cut: bool) -> list[Trace]:
    """Give one number to the same step of ranks whose traces count from their own beginning.

    Ranks end a step at nearly one time. Where they don't, as with clocks that differ by a part of a step, a trace is
    compared with no other. Nor is one that was cut out of a run and has no steps.
    """
    first: Trace | None = None  # that counts from its own beginning
    placed = []
    for lane, trace in enumerate(traces, 1):
        if not trace.is_numbered and any(window.step is not None for window in trace.windows):
            first = first or trace
            placed.append(_aligned(trace, first, lane))
        elif are_cut and not trace.is_numbered:
            placed.append(replace(trace, lane=lane))
        else:
            placed.append(trace)
    return placed


def _aligned(trace: Trace, first: Trace, lane: int) -> Trace:
    apart: dict[int, float] = {}  # by how many steps later it may have begun, the distance of the ends
    for shift in range(-len(trace.windows) + 1, len(first.windows)):
        pairs = zip(first.windows[max(0, shift) :], trace.windows[max(0, -shift) :], strict=False)
        apart[shift] = median(abs(one.end + first.base - other.end - trace.base) for one, other in pairs)
    best = min(apart, key=apart.__getitem__)
    if apart[best] > MEETS * median(window.end - window.start for window in trace.windows):
        return replace(trace, lane=lane)
    windows = [window._replace(step=(window.step or 0) + best) for window in trace.windows]
    return replace(trace, windows=windows)


def _name(trace: Trace, traces_of_rank: int) -> str:
    file = name_of(trace.file)
    if trace.rank is None:
        return file
    return f"rank {trace.rank}" if traces_of_rank == 1 else f"rank {trace.rank} ({file})"


def split(trace: Trace, window: Window) -> StepSplit:
    """Say where the time of a step went."""
    covers = (trace.computing, trace.communicating, trace.both, trace.copying)
    computing, communicating, both, copying = (cover.within(window.start, window.end) for cover in covers)
    seconds = window.end - window.start
    idle = max(0.0, seconds - computing - communicating + both - copying)
    parts = (seconds, computing, communicating, both, copying, idle)
    return StepSplit(*(MICRO * part for part in parts), step=window.step)


def mean_of(splits: Sequence[TimeSplit]) -> TimeSplit:
    """Give the mean of several; of none, all zero."""
    if not splits:
        return TimeSplit()
    return TimeSplit(*(sum(getattr(split, part) for split in splits) / len(splits) for part in PARTS))


def _calls(trace: Trace, rank: str) -> Iterator[CollectiveCall]:
    """Give the collectives that began in a step."""
    windows = iter(trace.windows)
    window = next(windows, None)
    for collective in trace.collectives:
        while window is not None and window.end <= collective.start:
            window = next(windows, None)
        if window is None:
            return
        if window.start <= collective.start:
            length = collective.end - collective.start
            exposed = length - trace.computing.within(collective.start, collective.end)
            yield CollectiveCall(collective.kind, window.step, trace.lane, rank, MICRO * length, MICRO * exposed)


def _compared(calls: Iterable[CollectiveCall]) -> Iterator[CollectiveCall]:
    """Say of each call how long it was exposed until the last rank took part.

    The last rank's own call is the shortest, so clocks do not matter. Only where each rank has as many calls of a kind
    in a step, so that the first of one is the first of another.
    """
    by_rank: dict[tuple[CollectiveKind, int | None, int], dict[str, list[CollectiveCall]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for call in calls:
        by_rank[call.kind, call.step, call.lane][call.rank].append(call)
    for of_ranks in by_rank.values():
        if len(of_ranks) < 2 or len({len(of_rank) for of_rank in of_ranks.values()}) > 1:
            yield from chain(*of_ranks.values())
            continue
        for same in zip(*of_ranks.values(), strict=True):
            last = min(same, key=lambda call: call.seconds)
            for call in same:
                yield call._replace(waited=min(call.seconds - last.seconds, call.exposed), last=last.rank)


def _summaries(calls: Iterable[CollectiveCall]) -> list[CollectiveSummary]:
    by_kind: dict[CollectiveKind, list[CollectiveCall]] = defaultdict(list)
    for call in calls:
        by_kind[call.kind._replace(ranks=())].append(call)
    summaries = [_summary(kind, alike) for kind, alike in by_kind.items()]
    return sorted(summaries, key=lambda summary: (-summary.exposed, -summary.seconds, summary.kind.name))


def _summary(kind: CollectiveKind, calls: Sequence[CollectiveCall]) -> CollectiveSummary:
    longest = max(calls, key=lambda call: call.seconds)
    seconds = sum(call.seconds for call in calls)
    exposed = sum(call.exposed for call in calls)
    return CollectiveSummary(
        kind,
        count=len(calls),
        seconds=seconds,
        exposed=exposed,
        hidden=1.0 - exposed / seconds if seconds > 0 else 1.0,
        waiting=sum(call.waited for call in calls),
        median=median(call.seconds for call in calls),
        longest=Longest(longest.seconds, longest.rank, longest.step),
    )
