"""What one trace of torch.profiler says of computation, communication and steps, event by event (pure).

Times are microseconds of the trace's own clock. Where a trace has kernels, computation is what the GPU computes; on
CPU it is the operators (aten and others with a name of two parts), less what is done for a collective: operators
inside c10d's, and copies that Gloo's threads make. Communication is NCCL's or RCCL's kernels, and Gloo's `gloo:…`.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from allranks.protocol.jsontext import Json
from allranks.text import count_of

from .kernels import CollectiveKind, gloo_kind, kernel_kind
from .stream import BrokenTrace, JsonObject, Reader

STEP = re.compile(r"ProfilerStep\s*#(\d{1,15})$")
CPU_COLLECTIVE = re.compile(r"(?:gloo|mpi|ucc):")
ANNOTATIONS = ("user_annotation", "gpu_user_annotation")
COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
C10D = ("c10d::", "_c10d_functional::")
# Operators that start or await something, or only hold others: what they compute has events of its own.
HOLDERS = (
    *C10D,
    "c10d_functional::",
    "_c10d_functional_autograd::",
    "autograd::",
    "torch::autograd::",
    "FSDP::",
    "profiler::",
)
COMPILED = ("triton_", "cpp_fused", "graph_")  # of torch.compile: no :: in their names
FILE_RANKS = (
    re.compile(r"rank[_.\-]?(\d{1,6})", re.IGNORECASE),
    re.compile(r"(?:^|[_.\-])(\d{1,5})(?=[_.\-]trace|\.(?:pt\.)?trace|\.json)"),
)
OPTIMIZER_STEP = "Optimizer.step#"  # torch/optim/optimizer.py, profile_hook_step: in every trace
NO_STEPS = "no ProfilerStep annotations (profiler.step() is not called): taken as one"
OPTIMIZER_STEPS = "no ProfilerStep annotations: a step is from the end of one Optimizer.step to that of the next"
CPU_STEPS = "steps are the CPU's, the GPU's work of a step may begin later"
LARGEST_TIME = 1e300


class Collective(NamedTuple):
    """One collective as one rank saw it."""

    start: float
    end: float
    kind: CollectiveKind


class Window(NamedTuple):
    """A step; `step` is None where the trace has no steps."""

    step: int | None
    start: float
    end: float


@dataclass(frozen=True)
class Trace:
    """One file: one rank, or a part of its time. `copying` has copies beside which nothing else runs.

    `base` is what its times begin at (µs of unix time). `is_numbered`: the program has numbered the steps itself.
    Traces in one `lane` are compared.
    """

    file: str
    rank: int | None
    device: str
    events: int
    computing: Spans
    communicating: Spans
    both: Spans
    copying: Spans
    collectives: list[Collective]
    windows: list[Window]
    notes: list[str]
    base: float = 0.0
    is_numbered: bool = True
    lane: int = 0


def read_trace(file: str, pieces: Iterable[str]) -> Trace:
    """Read the trace in this text, up to where it breaks off; raise BrokenTrace where it has no event at all."""
    reader = Reader(pieces)
    recording = _Recording()
    try:
        for value in reader.events():
            recording.take(value)
    except BrokenTrace as error:
        if not recording.events:
            raise
        recording.notes.append(f"{error}: {count_of(recording.events, 'event')} read")
    if not recording.events:
        raise BrokenTrace("no events in it")
    base = reader.head.get("baseTimeNanoseconds")
    return recording.trace(file, rank_of(reader.head, file), (_time(base) or 0.0) / 1000)


def rank_of(head: JsonObject, file: str) -> int | None:
    """Take the rank from the trace's distributedInfo, else from the file's name."""
    info = head.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
        return rank
    matches = (pattern.search(name_of(file)) for pattern in FILE_RANKS)
    return next((int(match.group(1)) for match in matches if match), None)


def name_of(file: str) -> str:
    """Give a file's name without its directories, of any system."""
    return re.split(r"[/\\]", file)[-1]


def _time(value: Json) -> float | None:
    if isinstance(value, (int, float)) and -LARGEST_TIME < value < LARGEST_TIME:
        return float(value)
    return None


class _Recording:
    def __init__(self) -> None:
        self.events = 0
        self.notes: list[str] = []
        self._on_gpu = False
        self._kernels = Spans()
        self._copies = Spans()
        self._operators: dict[tuple[str, str], Spans] = defaultdict(Spans)  # by thread
        self._for_collectives: dict[tuple[str, str], Spans] = defaultdict(Spans)  # by thread
        self._collectives: list[Collective] = []
        self._cpu_steps: dict[int, Window] = {}
        self._gpu_steps: dict[int, Window] = {}
        self._optimizer_ends: dict[str, dict[str, dict[tuple[str, str], list[float]]]] = {}  # category, name, thread

    def take(self, value: JsonObject) -> None:
        """Take in one event, if it has a name, a start and a length (by hand: traces have millions)."""
        self.events += 1
        name = value.get("name")
        start = _time(value.get("ts"))
        length = _time(value.get("dur"))
        if start is None or length is None or not isinstance(name, str):
            return
        end = start + max(0.0, length)
        category = str(value.get("cat", "")).lower()
        thread = (str(value.get("pid")), str(value.get("tid")))
        arguments = value.get("args")
        if not isinstance(arguments, dict):
            arguments = {}
        if category == "kernel":
            self._on_gpu = True
            kind = kernel_kind(name, arguments)
            if kind is not None:
                self._collectives.append(Collective(start, end, kind))
            else:
                self._kernels.add(start, end)
        elif category in COPIES:
            self._on_gpu = True
            self._copies.add(start, end)
        elif step := STEP.match(name):
            number = int(step.group(1))
            # On the GPU there is one for each stream.
            windows = self._gpu_steps if category == ANNOTATIONS[1] else self._cpu_steps
            window = windows.get(number, Window(number, start, end))
            windows[number] = Window(number, min(window.start, start), max(window.end, end))
        elif name.startswith(OPTIMIZER_STEP) and category in ANNOTATIONS:
            of_name = self._optimizer_ends.setdefault(category, {}).setdefault(name, {})
            of_name.setdefault(thread, []).append(end)
        elif category in ("cpu_op", "operator", "user_annotation"):
            is_collective = CPU_COLLECTIVE.match(name) is not None
            if is_collective:
                self._collectives.append(Collective(start, end, gloo_kind(name, arguments)))
            if is_collective or name == "record_param_comms" or name.startswith(C10D):
                self._for_collectives[thread].add(start, end)
            elif category != "user_annotation" and is_operator(name):
                self._operators[thread].add(start, end)

    def trace(self, file: str, rank: int | None, base: float) -> Trace:
        """Put together what needs all events."""
        collectives = sorted(self._collectives, key=lambda collective: collective.start)
        communicating = Spans((collective.start, collective.end) for collective in collectives)
        computing = self._kernels
        if not self._on_gpu:
            computing = union(
                without(spans, self._for_collectives[thread]) for thread, spans in self._operators.items()
            )
        busy = union((computing, communicating))
        return Trace(
            file,
            rank,
            device="gpu" if self._on_gpu else "cpu",
            events=self.events,
            computing=computing,
            communicating=communicating,
            both=intersection(communicating, computing),
            copying=without(self._copies, busy),
            collectives=collectives,
            windows=self._windows(union((busy, self._copies))),
            notes=self.notes,
            base=base,
            is_numbered=bool(self._cpu_steps),
        )

    def _windows(self, busy: Spans) -> list[Window]:
        """Take the GPU's own steps where it has them: what the CPU launches in a step runs later."""
        intervals = busy.intervals()
        steps = self._gpu_steps if self._on_gpu and self._gpu_steps else self._cpu_steps
        windows = [window for _, window in sorted(steps.items())]
        if not windows:
            windows = self._between_optimizer_steps()
            if windows:
                self.notes.append(OPTIMIZER_STEPS)
                return windows
            self.notes.append(NO_STEPS)
            return [Window(None, intervals[0][0], intervals[-1][1])] if intervals else []
        if not self._on_gpu:
            return windows
        if not self._gpu_steps:
            self.notes.append(CPU_STEPS)
        for position, following in enumerate(windows[1:]):
            if following.step == (windows[position].step or 0) + 1:
                windows[position] = windows[position]._replace(end=following.start)
        if intervals:
            windows[-1] = windows[-1]._replace(end=max(windows[-1].end, intervals[-1][1]))
        return windows

    def _between_optimizer_steps(self) -> list[Window]:
        """Of several optimizers the one that steps least often. On the GPU each stream has annotations of its own."""
        found = self._optimizer_ends.get(ANNOTATIONS[1]) or self._optimizer_ends.get(ANNOTATIONS[0]) or {}
        of_names = [max(of_threads.values(), key=len) for of_threads in found.values()]
        ends = min((ends for ends in of_names if len(ends) > 1), key=len, default=[])
        return [Window(number, start, end) for number, (start, end) in enumerate(pairwise(sorted(ends)), 1)]


def is_operator(name: str) -> bool:
    """Tell whether an event computes, and not only holds or awaits others."""
    return ("::" in name or any(part in name for part in COMPILED)) and not name.startswith(HOLDERS)


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
