"""When every node and rank was in which state, from the events of a run (pure).

Events come from a file that other machines had a part in: what is not as expected is left out, names are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks.text import count_of

Event = Mapping[str, Any]

LONGEST = 100  # characters of a name or a note
CONNECTING, READY, GATE, RUNNING, SILENT, LOST, STARTED, INITIALISED = (
    "connecting", "ready", "gate", "running", "silent", "lost", "started", "initialised",
)  # fmt: skip
DONE, FAILED, ENDED, UNCLEAN = "done", "failed", "ended", "unclean"
GLOBAL = {
    "gate-proved": "gate proved", "all-initialised": "all initialised", "test-passed": "tests passed",
    "hang-suspected": "hang suspected", "hang": "hang", "controller-lost": "launcher lost",
    "controller-attached": "launcher attached", "spare": "node replaced",
}  # fmt: skip


@dataclass(frozen=True)
class Span:
    """A state from `start` to `end`, unix seconds."""

    start: float
    end: float
    state: str
    attempt: int = 0


@dataclass(frozen=True)
class Mark:
    """Something that happened at one moment."""

    t: float
    kind: str
    text: str


@dataclass
class Row:
    """A node, or one of its ranks."""

    node: str
    rank: int | None = None
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    _state: str | None = None
    _since: float = 0.0
    _attempt: int = 0

    def change(self, t: float, state: str | None, attempt: int = 0) -> None:
        """From now on another state; None is none."""
        if self._state is not None and t > self._since:
            self.spans.append(Span(self._since, t, self._state, self._attempt))
        elif self._state is not None and self.rank is not None and state is None:
            self.spans.append(Span(self._since, self._since, self._state, self._attempt))  # every rank has its bar
        self._state, self._since, self._attempt = state, t, attempt

    @property
    def state(self) -> str | None:
        """The state it is in."""
        return self._state

    @property
    def failed(self) -> bool:
        """Whether it did not end well by itself."""
        return any(mark.kind == FAILED for mark in self.marks) or any(span.state == LOST for span in self.spans)


@dataclass(frozen=True)
class Timeline:
    """Rows by node, each followed by its ranks; `moments` are of the run as a whole."""

    start: float
    end: float
    rows: tuple[Row, ...]
    moments: tuple[Mark, ...]


def timeline(events: Sequence[Event], nodes: Mapping[str, Sequence[int]], aliases: Mapping[str, str]) -> Timeline:
    """`nodes` has those of the plan with their ranks, so that one that never came has a row; `aliases` names by
    address."""
    reader = _Reader(nodes, aliases)
    for event in events:
        t = _number(event.get("t"))
        if t is not None:
            reader.take(event, t)
    return reader.close()


class _Reader:
    def __init__(self, nodes: Mapping[str, Sequence[int]], aliases: Mapping[str, str]) -> None:
        self._aliases = aliases
        self._nodes = {_cut(name): Row(_cut(name)) for name in nodes}
        self._ranks = {rank: Row(_cut(name), rank) for name, ranks in nodes.items() for rank in ranks}
        self._moments: list[Mark] = []
        self._times: list[float] = []
        self._start: float | None = None

    def take(self, event: Event, t: float) -> None:
        kind, attempt = str(event.get("event")), event.get("attempt")
        attempt = attempt if isinstance(attempt, int) else 0
        self._times.append(t)
        if self._start is None:
            self._start = t
        node = self._node(event)
        if node is not None and event.get("rank") is not None:
            self._of_rank(kind, event, t, attempt, node)
        elif node is not None:
            self._of_node(kind, event, t, attempt, node)
        self._of_run(kind, event, t, attempt)

    def _node(self, event: Event) -> Row | None:
        name = event.get("node")
        if not isinstance(name, str):
            return None
        name = _cut(self._aliases.get(name, name))
        return self._nodes.setdefault(name, Row(name))

    def _of_node(self, kind: str, event: Event, t: float, attempt: int, node: Row) -> None:
        states = {"node-connecting": CONNECTING, "node-ready": READY, "gate-proved": None,
                  "node-silent": SILENT, "node-lost": LOST}  # fmt: skip
        if states.get(kind):
            node.change(t, states[kind], attempt)
        elif kind == "node-back":
            running = any(r.node == node.node and r.state is not None for r in self._ranks.values())
            node.change(t, RUNNING if running else READY, attempt)
        elif kind == "node-clean":
            left = event.get("left")
            if left and isinstance(left, (list, tuple)):
                node.marks.append(Mark(t, UNCLEAN, f"{count_of(len(left), 'process', 'processes')} could not be ended"))
            node.change(t, None)

    def _of_rank(self, kind: str, event: Event, t: float, attempt: int, node: Row) -> None:
        rank = event["rank"]
        if isinstance(rank, bool) or not isinstance(rank, int):
            return
        row = self._ranks.setdefault(rank, Row(node.node, rank))
        if kind == "rank-started":
            row.node = node.node
            row.change(t, STARTED, attempt)
            if node.state not in (RUNNING, LOST):
                node.change(t, RUNNING, attempt)
        elif kind == "rank-initialised":
            row.change(t, INITIALISED, attempt)
        elif kind == "rank-exit":
            row.change(t, None)
            row.marks.append(_exit(event, t))

    def _of_run(self, kind: str, event: Event, t: float, attempt: int) -> None:
        if kind == "gate-listening":
            for node in self._nodes.values():
                if node.state in (READY, None):
                    node.change(t, GATE, attempt)
        elif kind == "attempt-start" and attempt:
            self._moments.append(Mark(t, "attempt", f"attempt {attempt}"))
        elif kind == "attempt-end":
            self._stop(t)
            outcome = _cut(event.get("outcome") or "ended")
            self._moments.append(Mark(t, FAILED if outcome == "failed" else "end", f"attempt {attempt} {outcome}"))
        elif kind == "ending":
            self._moments.append(Mark(t, "ending", f"ending: {_cut(event.get('reason') or '')}"))
        elif kind == "first-step" and self._start is not None:
            seconds = _number(event.get("seconds"))
            at = self._start + seconds if seconds is not None and seconds >= 0 else t
            self._moments.append(Mark(min(at, t), "first-step", "first step"))
        elif kind in GLOBAL:
            self._moments.append(Mark(t, kind, GLOBAL[kind]))

    def _stop(self, t: float) -> None:
        for row in (*self._nodes.values(), *self._ranks.values()):
            if row.state is not None:
                row.change(t, None)

    def close(self) -> Timeline:
        """The rows in order; what goes on goes on to the last event."""
        end = max(self._times, default=0.0)
        self._stop(end)
        start = min(self._times, default=0.0)
        by_node: dict[str, list[Row]] = {}
        for rank in sorted(self._ranks):
            by_node.setdefault(self._ranks[rank].node, []).append(self._ranks[rank])
        rows = [row for node in self._nodes.values() for row in (node, *by_node.get(node.node, ()))]
        return Timeline(start, end, tuple(rows), tuple(sorted(self._moments, key=lambda m: m.t)))


def chosen(line: Timeline, culprits: Iterable[int], most: int) -> tuple[list[Row], int]:
    """All rows, or of too many the culprits', the failed and the first, in order; and how many ranks are left out."""
    wanted = set(culprits)
    if len(line.rows) <= most:
        return list(line.rows), 0
    order = sorted(range(len(line.rows)), key=lambda i: (_weight(line.rows[i], wanted), i))
    keep = set(order[:most])
    names = {line.rows[i].node for i in keep}
    rows = [r for i, r in enumerate(line.rows) if i in keep or (r.rank is None and r.node in names and i in keep)]
    return rows, len(line.rows) - len(rows)


def _weight(row: Row, wanted: set[int]) -> int:
    if row.rank in wanted:
        return 0
    return 1 if row.failed else 2 if row.rank is None else 3


def _exit(event: Event, t: float) -> Mark:
    signal, code = event.get("signal"), event.get("code")
    said = f"signal {_cut(signal)}" if signal is not None else f"code {_cut(code)}"
    if event.get("expected"):
        return Mark(t, ENDED, f"ended by allranks ({said})")
    return Mark(t, DONE, "ended with code 0") if code == 0 else Mark(t, FAILED, f"ended with {said}")


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 1e11 else None


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
