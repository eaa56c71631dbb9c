"""What one trace of torch.profiler says of computation, communication and steps, event by event (pure).

Times are microseconds of the trace's own clock. Where a trace has kernels, computation is what the GPU computes; on
CPU it is the operators (aten and others with a name of two parts), less what is done for a collective: operators
inside c10d's, and copies that Gloo's threads make. Communication is NCCL's or RCCL's kernels, and Gloo's `gloo:…`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .collectives import Kind, gloo_kind, is_communication, kernel_kind
from .spans import Cover, Spans, without
from .stream import BrokenTrace, Reader

STEP = re.compile(r"ProfilerStep\s*#(\d+)$")
CPU_COLLECTIVE = re.compile(r"(?:gloo|mpi|ucc):")
# Operators that start or await something, or only hold others: what they compute has events of its own.
HOLDERS = ("c10d::", "_c10d_functional::", "c10d_functional::", "_c10d_functional_autograd::", "autograd::",
           "torch::autograd::", "FSDP::", "profiler::", "record_param_comms")  # fmt: skip
COMPILED = ("triton_", "cpp_fused", "graph_")  # of torch.compile: no :: in their names
FILE_RANK = (re.compile(r"rank[_.\-]?(\d{1,6})", re.IGNORECASE),
             re.compile(r"(?:^|[_.\-])(\d{1,5})(?=[_.\-]trace|\.(?:pt\.)?trace|\.json)"))  # fmt: skip


class Collective(NamedTuple):
    """One collective as one rank saw it."""

    start: float
    end: float
    kind: Kind


class Window(NamedTuple):
    """A step; `number` is None where the trace has no steps."""

    number: int | None
    start: float
    end: float


@dataclass
class Trace:
    """One file: one rank, or a part of its time."""

    file: str
    rank: int | None = None
    device: str = "cpu"
    events: int = 0
    computing: Cover = field(default_factory=lambda: Cover(Spans()))
    communicating: Cover = field(default_factory=lambda: Cover(Spans()))
    copying: Cover = field(default_factory=lambda: Cover(Spans()))
    collectives: list[Collective] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_trace(file: str, pieces: Iterable[str]) -> Trace:
    """The trace in this text; BrokenTrace where it has no event at all. What is broken off is read up to there."""
    reader, seen, trace = Reader(pieces), _Seen(), Trace(file)
    try:
        for event in reader.events():
            seen.take(event)
    except BrokenTrace as error:
        if not seen.events:
            raise
        trace.notes.append(f"{error}: {seen.events} events were read")
    if not seen.events:
        raise BrokenTrace("no events in it")
    trace.events = seen.events
    trace.rank = rank_of(reader.head, file)
    seen.finish(trace)
    return trace


def rank_of(head: Mapping[str, Any], file: str) -> int | None:
    """From the trace's distributedInfo, else from the file's name."""
    info = head.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, Mapping) else None
    if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
        return rank
    name = re.split(r"[/\\]", file)[-1]
    found = next((m for m in (pattern.search(name) for pattern in FILE_RANK) if m), None)
    return int(found.group(1)) if found else None


class _Seen:
    """Gathers what the events say; only intervals are kept of them."""

    def __init__(self) -> None:
        self.events = 0
        self.kernels, self.copies = Spans(), Spans()
        self.operators: dict[Any, Spans] = defaultdict(Spans)  # by thread
        self.held: dict[Any, Spans] = defaultdict(Spans)  # by thread: time that is a collective's
        self.on_device: list[tuple[float, float, str, Mapping[str, Any]]] = []
        self.on_cpu: list[Collective] = []
        self.asked: dict[Any, Mapping[str, Any]] = {}  # args of record_param_comms by External id
        self.steps: dict[str, dict[int, list[float]]] = {"cpu": {}, "gpu": {}}
        self.has_kernels = False

    def take(self, event: Mapping[str, Any]) -> None:
        """One event, whatever it is."""
        self.events += 1
        start, length, name = event.get("ts"), event.get("dur"), event.get("name")
        if not (isinstance(start, (int, float)) and isinstance(length, (int, float)) and isinstance(name, str)):
            return
        category, end = str(event.get("cat", "")).lower(), start + max(0.0, length)
        args = event.get("args")
        args = args if isinstance(args, Mapping) else {}
        if category == "kernel":
            self._kernel(name, start, end, args)
        elif category in ("gpu_memcpy", "gpu_memset", "memcpy", "memset"):
            self.has_kernels = True
            self.copies.add(start, end)
        elif name.startswith("ProfilerStep"):
            self._step("gpu" if category == "gpu_user_annotation" else "cpu", name, start, end)
        elif category in ("cpu_op", "operator", "user_annotation"):
            self._cpu(category, name, start, end, (event.get("pid"), event.get("tid")), args)

    def _kernel(self, name: str, start: float, end: float, args: Mapping[str, Any]) -> None:
        self.has_kernels = True
        if is_communication(name, args):
            self.on_device.append((start, end, name, args))
        else:
            self.kernels.add(start, end)

    def _step(self, where: str, name: str, start: float, end: float) -> None:
        """On the GPU there is one for each stream."""
        found = STEP.match(name)
        if found:
            times = self.steps[where].setdefault(int(found.group(1)), [start, end])
            times[:] = min(times[0], start), max(times[1], end)

    def _cpu(self, category: str, name: str, start: float, end: float, thread: Any, args: Mapping[str, Any]) -> None:
        if CPU_COLLECTIVE.match(name):
            self.on_cpu.append(Collective(start, end, gloo_kind(name, args)))
            self.held[thread].add(start, end)
        elif name == "record_param_comms":
            self.asked[args.get("External id")] = args
            self.held[thread].add(start, end)
        elif name.startswith(("c10d::", "_c10d_functional::")):
            self.held[thread].add(start, end)
        elif category == "user_annotation" or name.startswith(HOLDERS):
            return
        elif "::" in name or any(part in name for part in COMPILED):
            self.operators[thread].add(start, end)

    def finish(self, trace: Trace) -> None:
        """All that needs the whole trace."""
        trace.device = "gpu" if self.has_kernels else "cpu"
        trace.collectives = list(self.on_cpu)
        for start, end, name, args in self.on_device:
            more = {} if "Collective name" in args else self.asked.get(args.get("External id"), {})
            trace.collectives.append(Collective(start, end, kernel_kind(name, {**more, **args})))
        trace.collectives.sort(key=lambda c: c.start)
        if self.has_kernels:
            trace.computing = Cover(self.kernels)
        else:
            trace.computing = Cover(*(without(s, self.held[t]) for t, s in self.operators.items()))
        trace.communicating = Cover(Spans((c.start, c.end) for c in trace.collectives))
        trace.copying = Cover(self.copies)
        trace.windows = self._windows(trace)

    def _windows(self, trace: Trace) -> list[Window]:
        """Of the GPU's own steps where it has them: what the CPU launches in a step runs later."""
        steps = self.steps["gpu"] if self.has_kernels and self.steps["gpu"] else self.steps["cpu"]
        found = [Window(n, *times) for n, times in sorted(steps.items())]
        ends = [p[-1][1] for p in (trace.computing.pairs, trace.communicating.pairs, trace.copying.pairs) if p]
        starts = [p[0][0] for p in (trace.computing.pairs, trace.communicating.pairs, trace.copying.pairs) if p]
        if not found:
            trace.notes.append("no ProfilerStep annotations (profiler.step() is not called): taken as one")
            return [Window(None, min(starts), max(ends))] if starts else []
        if not self.has_kernels:
            return found
        if not self.steps["gpu"]:
            trace.notes.append("steps are the CPU's, the GPU's work of a step may begin later")
        last = found[-1]._replace(end=max([found[-1].end, *ends]))
        return [*(w._replace(end=after.start) if after.number == (w.number or 0) + 1 else w
                  for w, after in zip(found, found[1:], strict=False)), last]  # fmt: skip
