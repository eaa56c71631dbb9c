"""When every node and rank was in which state, from the events of a run (pure).

Events come from a file that other machines had a part in: what is not as expected is left out, names are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from allranks.protocol.codec import DecodeError, decode
from allranks.protocol.jsontext import Json
from allranks.runs.events import (
    AllInitialised,
    ControllerAttached,
    GateProved,
    HangConcluded,
    HangSuspected,
    NodeConnecting,
    NodeLost,
    NodeReady,
    NodeReplaced,
    NodeSilent,
    SuitePassed,
)
from allranks.text import count_of, cut, group

LONGEST = 100  # characters of a name or a note
LATEST = 1e11  # unix seconds: beyond, a clock is wrong
CONNECTING = "connecting"
READY = "ready"
RENDEZVOUS = "rendezvous"
RUNNING = "running"
SILENT = "silent"
LOST = "lost"
STARTED = "started"
INITIALISED = "initialised"
DONE = "done"
FAILED = "failed"
ENDED = "ended"
UNCLEAN = "unclean"
NODE_STATES = {
    NodeConnecting.kind: CONNECTING,
    NodeReady.kind: READY,
    NodeSilent.kind: SILENT,
    NodeLost.kind: LOST,
}
OF_THE_RUN = {
    GateProved.kind: "master reached",
    AllInitialised.kind: "all initialised",
    SuitePassed.kind: "tests passed",
    HangSuspected.kind: "hang suspected",
    HangConcluded.kind: "hang",
    ControllerAttached.kind: "launcher attached",
    NodeReplaced.kind: "node replaced",
}


@dataclass(frozen=True)
class TimelineEvent:
    """What a timeline takes of a line of events.jsonl."""

    t: float
    event: str
    node: str | None = None
    rank: int | None = None
    attempt: int = 0
    code: int | None = None
    signal: str | int | None = None
    expected: bool = False
    left: tuple[object, ...] | None = None
    outcome: str | None = None
    reason: str | None = None
    seconds: object = None  # of other kinds: whatever they have


@dataclass(frozen=True)
class Span:
    """A state from `start` to `end`, unix seconds."""

    start: float
    end: float
    state: str
    attempt: int = 0


@dataclass(frozen=True)
class Moment:
    """Something that happened at one moment."""

    t: float
    kind: str
    text: str


@dataclass
class TimelineRow:
    """A node, or one of its ranks."""

    node: str
    rank: int | None = None
    spans: list[Span] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    state: str | None = None
    since: float = 0.0
    attempt: int = 0

    def change(self, t: float, state: str | None, attempt: int = 0) -> None:
        """Begin another state; None is none. A rank that came and went at once has its bar too."""
        at_once = self.rank is not None and state is None
        if self.state is not None and (t > self.since or at_once):
            self.spans.append(Span(self.since, max(t, self.since), self.state, self.attempt))
        self.state = state
        self.since = t
        self.attempt = attempt

    @property
    def failed(self) -> bool:
        """Tell whether it did not end well by itself."""
        lost = any(span.state == LOST for span in self.spans)
        return lost or any(moment.kind == FAILED for moment in self.moments)


@dataclass(frozen=True)
class Timeline:
    """Rows by node, each followed by its ranks; `moments` are of the run as a whole."""

    start: float
    end: float
    rows: tuple[TimelineRow, ...]
    moments: tuple[Moment, ...]


def timeline(events: Iterable[Json], nodes: Mapping[str, Sequence[int]], aliases: Mapping[str, str]) -> Timeline:
    """Read the events, as JSON values, into rows.

    `nodes` has those of the plan with their ranks, so that one that never came has a row; `aliases` names by address.
    """
    reader = _Reader(nodes, aliases)
    for value in events:
        try:
            event = decode(TimelineEvent, value)
        except DecodeError:
            continue
        if 0 <= event.t < LATEST:
            reader.take(event)
    return reader.close()


class _Reader:
    def __init__(self, nodes: Mapping[str, Sequence[int]], aliases: Mapping[str, str]) -> None:
        self._aliases = aliases
        self._nodes = {_cut(name): TimelineRow(_cut(name)) for name in nodes}
        self._ranks = {rank: TimelineRow(_cut(name), rank) for name, ranks in nodes.items() for rank in ranks}
        self._moments: list[Moment] = []
        self._times: list[float] = []

    def take(self, event: TimelineEvent) -> None:
        self._times.append(event.t)
        if event.node is not None:
            name = _cut(self._aliases.get(event.node, event.node))
            node = self._nodes.setdefault(name, TimelineRow(name))
            if event.rank is None:
                self._of_node(event, node)
            else:
                self._of_rank(event, node, self._ranks.setdefault(event.rank, TimelineRow(name, event.rank)))
        self._of_run(event)

    def _of_node(self, event: TimelineEvent, node: TimelineRow) -> None:
        if event.event in NODE_STATES:
            node.change(event.t, NODE_STATES[event.event], event.attempt)
        elif event.event == "node-back":
            running = any(row.node == node.node and row.state is not None for row in self._ranks.values())
            node.change(event.t, RUNNING if running else READY, event.attempt)
        elif event.event == "node-clean":
            if event.left:
                text = f"{count_of(len(event.left), 'process', 'processes')} could not be ended"
                node.moments.append(Moment(event.t, UNCLEAN, text))
            node.change(event.t, None)

    def _of_rank(self, event: TimelineEvent, node: TimelineRow, row: TimelineRow) -> None:
        if event.event == "rank-started":
            row.node = node.node
            row.change(event.t, STARTED, event.attempt)
            if node.state not in (RUNNING, LOST):
                node.change(event.t, RUNNING, event.attempt)
        elif event.event == "rank-initialised":
            row.change(event.t, INITIALISED, event.attempt)
        elif event.event == "rank-exit":
            row.change(event.t, None)
            row.moments.append(_exit(event))

    def _of_run(self, event: TimelineEvent) -> None:
        t = event.t
        if event.event == "gate-listening":
            for node in self._nodes.values():
                if node.state in (READY, None):
                    node.change(t, RENDEZVOUS, event.attempt)
        elif event.event == "attempt-start" and event.attempt:
            self._note(t, "attempt", f"attempt {event.attempt}")
        elif event.event == "attempt-end":
            self._stop(t)
            outcome = _cut(event.outcome or "ended")
            self._note(t, FAILED if outcome == "failed" else "end", f"attempt {event.attempt} {outcome}")
        elif event.event == "ending":
            self._note(t, "ending", f"ending: {_cut(event.reason or '')}")
        elif event.event == "first-step":
            if isinstance(event.seconds, (int, float)) and event.seconds >= 0:
                t = min(t, self._times[0] + event.seconds)
            self._note(t, "first-step", "first step")
        elif event.event in OF_THE_RUN:
            self._note(t, event.event, OF_THE_RUN[event.event])

    def _note(self, t: float, kind: str, text: str) -> None:
        self._moments.append(Moment(t, kind, text))

    def _stop(self, t: float) -> None:
        for row in (*self._nodes.values(), *self._ranks.values()):
            if row.state is not None:
                row.change(t, None)

    def close(self) -> Timeline:
        """Give the rows in order; what goes on goes on to the last event."""
        end = max(self._times, default=0.0)
        self._stop(end)
        by_node = group([row for _, row in sorted(self._ranks.items())], lambda row: row.node)
        rows = [row for node in self._nodes.values() for row in (node, *by_node.get(node.node, ()))]
        moments = sorted(self._moments, key=lambda moment: moment.t)
        return Timeline(min(self._times, default=0.0), end, tuple(rows), tuple(moments))


def choose_rows(line: Timeline, culprits: Iterable[int], most: int) -> tuple[list[TimelineRow], int]:
    """Give all rows, or of too many the culprits', the failed and the first, in order; and how many are left out."""
    wanted = set(culprits)

    def weight(at: int) -> tuple[int, int]:
        row = line.rows[at]
        kinds = (row.rank in wanted, row.failed, row.rank is None, True)
        return kinds.index(True), at

    chosen = sorted(sorted(range(len(line.rows)), key=weight)[:most])
    return [line.rows[at] for at in chosen], len(line.rows) - len(chosen)


def _exit(event: TimelineEvent) -> Moment:
    how = f"code {event.code}" if event.signal is None else f"signal {_cut(str(event.signal))}"
    if event.expected:
        return Moment(event.t, ENDED, f"ended by allranks ({how})")
    return Moment(event.t, DONE if event.code == 0 else FAILED, f"ended with {how}")


def _cut(text: str) -> str:
    return cut(text, LONGEST)
