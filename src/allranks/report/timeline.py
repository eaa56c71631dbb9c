"""When every node and rank was in which state, from the events of a run (pure).

Events come from a file that other machines had a part in: what is not as expected is left out, names are cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from allranks.findings import Where
from allranks.protocol.attempts import AttemptEnd
from allranks.protocol.messages import EndedMessage, ExitMessage, StartedMessage
from allranks.protocol.run_facts import (
    NAMES,
    AllInitialised,
    AttemptStart,
    ControllerAttached,
    EndingBegun,
    Fact,
    FirstStep,
    GateListening,
    GateProved,
    HangConcluded,
    HangSuspected,
    NodeBack,
    NodeConnecting,
    NodeLeft,
    NodeLost,
    NodeReady,
    NodeReplaced,
    NodeSilent,
    NodeTakenIn,
    RankInitialised,
    Stamped,
    SuitePassed,
)
from allranks.runs.documents import RunDocument, StatusDocument
from allranks.text import count_of, cut, group

LONGEST = 100  # characters of a name or a note
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
NODE_STATES: dict[type, str] = {NodeConnecting: CONNECTING, NodeReady: READY, NodeSilent: SILENT, NodeLost: LOST}
OF_THE_RUN: dict[type, str] = {
    GateProved: "master reached",
    AllInitialised: "all initialised",
    SuitePassed: "tests passed",
    HangSuspected: "hang suspected",
    HangConcluded: "hang",
    ControllerAttached: "launcher attached",
    NodeReplaced: "node replaced",
    NodeLeft: "node has no place",
    NodeTakenIn: "node has a place again",
}


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
    """A node, or one of its ranks. `role`: the part of the run whose node it is."""

    node: str
    rank: int | None = None
    role: str = ""
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
    def name(self) -> str:
        """Name it: a node behind its role."""
        return f"{self.role} {self.node}".lstrip() if self.rank is None else f"rank {self.rank}"

    @property
    def failed(self) -> bool:
        """Tell whether it did not end well by itself."""
        lost = any(span.state == LOST for span in self.spans)
        return lost or any(moment.kind == FAILED for moment in self.moments)


@dataclass(frozen=True)
class Timeline:
    """Rows by node, each followed by its ranks; `moments` are of the run or a role as a whole."""

    start: float
    end: float
    rows: tuple[TimelineRow, ...]
    moments: tuple[Moment, ...]


def timeline(facts: Iterable[Stamped[Fact]], run: RunDocument, status: StatusDocument) -> Timeline:
    """Fold the facts of a run into rows: a node of `run` or `status` that never came has a row too."""
    reader = _Reader(run, status)
    for stamped in facts:
        reader.take(stamped)
    return reader.close()


class _Reader:
    def __init__(self, run: RunDocument, status: StatusDocument) -> None:
        self._aliases = {entry.address: entry.name for entry in run.nodes if entry.address is not None}
        self._main_role = next((role.name for role in run.roles), "")
        roles = {node.name: node.role for node in run.nodes} | {node.name: node.role for node in status.nodes}
        self._nodes = {_cut(name): TimelineRow(_cut(name), None, role) for name, role in roles.items()}
        self._ranks = {
            (node.role, rank.rank): TimelineRow(_cut(node.name), rank.rank, node.role)
            for node in status.nodes
            for rank in node.ranks
        }
        self._moments: list[Moment] = []
        self._times: list[float] = []

    def take(self, stamped: Stamped[Fact]) -> None:
        self._times.append(stamped.t)
        fact = stamped.fact
        if stamped.node:
            name = _cut(self._aliases.get(stamped.node, stamped.node))
            node = self._nodes.setdefault(name, TimelineRow(name, None, self._role(stamped)))
            if isinstance(fact, (StartedMessage, RankInitialised, ExitMessage)):
                self._of_rank(stamped, fact, node)
            else:
                self._of_node(stamped, node)
        self._of_run(stamped)

    def _of_node(self, stamped: Stamped[Fact], node: TimelineRow) -> None:
        t, fact, attempt = stamped.t, stamped.fact, stamped.attempt or 0
        if type(fact) in NODE_STATES:
            node.change(t, NODE_STATES[type(fact)], attempt)
        elif isinstance(fact, NodeBack):
            running = any(row.node == node.node and row.state is not None for row in self._ranks.values())
            node.change(t, RUNNING if running else READY, attempt)
        elif isinstance(fact, EndedMessage):
            if fact.left:
                text = f"{count_of(len(fact.left), 'process', 'processes')} could not be ended"
                node.moments.append(Moment(t, UNCLEAN, text))
            node.change(t, None)

    def _of_rank(
        self, stamped: Stamped[Fact], fact: StartedMessage | RankInitialised | ExitMessage, node: TimelineRow
    ) -> None:
        row = self._ranks.setdefault((node.role, fact.rank), TimelineRow(node.node, fact.rank, node.role))
        attempt = stamped.attempt or 0
        if isinstance(fact, StartedMessage):
            row.node = node.node
            row.change(stamped.t, STARTED, attempt)
            if node.state not in (RUNNING, LOST):
                node.change(stamped.t, RUNNING, attempt)
        elif isinstance(fact, RankInitialised):
            row.change(stamped.t, INITIALISED, attempt)
        else:
            row.change(stamped.t, None)
            row.moments.append(_exit(stamped.t, fact))

    def _of_run(self, stamped: Stamped[Fact]) -> None:
        t, fact, attempt = stamped.t, stamped.fact, stamped.attempt or 0
        if isinstance(fact, GateListening):
            for node in self._nodes.values():
                if node.state in (READY, None) and node.role == self._role(stamped):
                    node.change(t, RENDEZVOUS, attempt)
        elif isinstance(fact, AttemptStart) and attempt:
            self._note(stamped, "attempt", f"attempt {attempt}")
        elif isinstance(fact, AttemptEnd):
            self._stop(t, self._role(stamped))
            outcome = _cut(fact.outcome or "ended")
            self._note(stamped, FAILED if outcome == "failed" else "end", f"attempt {attempt} {outcome}")
        elif isinstance(fact, EndingBegun):
            self._note(stamped, "ending", f"ending: {_cut(fact.reason)}")
        elif isinstance(fact, FirstStep):
            if fact.seconds >= 0:
                t = min(t, self._times[0] + fact.seconds)
            self._note(stamped._replace(t=t), "first-step", "first step")
        elif type(fact) in OF_THE_RUN:
            self._note(stamped, NAMES[type(fact)], OF_THE_RUN[type(fact)])

    def _role(self, stamped: Stamped[Fact]) -> str:
        return stamped.role or self._main_role

    def _note(self, stamped: Stamped[Fact], kind: str, text: str) -> None:
        words = f"{self._role(stamped)}: {text}" if self._main_role else text
        self._moments.append(Moment(stamped.t, kind, words))

    def _stop(self, t: float, role: str | None = None) -> None:
        for row in (*self._nodes.values(), *self._ranks.values()):
            if row.state is not None and role in (None, row.role):
                row.change(t, None)

    def close(self) -> Timeline:
        """Give the rows in order; what goes on goes on to the last event."""
        end = max(self._times, default=0.0)
        self._stop(end)
        by_node = group([row for _, row in sorted(self._ranks.items())], lambda row: row.node)
        rows = [row for node in self._nodes.values() for row in (node, *by_node.get(node.node, ()))]
        moments = sorted(self._moments, key=lambda moment: moment.t)
        return Timeline(min(self._times, default=0.0), end, tuple(rows), tuple(moments))


def is_at(row: TimelineRow, culprit: Where) -> bool:
    """Tell whether a row is that of the rank at fault."""
    return row.rank is not None and (row.rank, row.role) == (culprit.rank, culprit.role)


def choose_rows(line: Timeline, culprit: Where, most: int) -> tuple[list[TimelineRow], int]:
    """Give all rows, or of too many the culprit's, the failed and the first, in order; and how many are left out."""

    def weight(at: int) -> tuple[int, int]:
        row = line.rows[at]
        kinds = (is_at(row, culprit), row.failed, row.rank is None, True)
        return kinds.index(True), at

    chosen = sorted(sorted(range(len(line.rows)), key=weight)[:most])
    return [line.rows[at] for at in chosen], len(line.rows) - len(chosen)


def _exit(t: float, end: ExitMessage) -> Moment:
    how = f"code {end.code}" if end.signal is None else f"signal {end.signal}"
    if end.expected:
        return Moment(t, ENDED, f"ended by allranks ({how})")
    return Moment(t, DONE if end.code == 0 else FAILED, f"ended with {how}")


def _cut(text: str) -> str:
    return cut(text, LONGEST)
