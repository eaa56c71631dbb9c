"""The lines of events.jsonl, one record each (pure); docs/architecture.md has their table.

A record's fields stand in the line beside `t`, `event` and, where it applies, `attempt`. A `t` of its own (unix seconds
by the controller's clock) is when it happened; without one that is when it was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from allranks.findings import Finding, Verdict
from allranks.protocol.codec import decode_each, decode_parts, encode, omit_empty
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.processes import RemainingProcess

from .documents import AttemptRecord, Document

if TYPE_CHECKING:
    from allranks.diagnose.hangs.attribute import Hang


class EventRecord:
    """What happened in a run; `kind` is the event's name.

    The fields of the record that `spread` names stand in the line themselves. A field in `kept_apart` is not in it.
    """

    kind = ""
    spread = ""
    kept_apart = ""

    def fields(self) -> Document:
        """Return the fields of its line that are its own."""
        fields = dict(encode(self))
        if self.spread:
            fields.update(fields.pop(self.spread))
        return fields

    def line(self, t: float, attempt: int | None = None) -> Document:
        """Return the line, written at `t` (unix seconds)."""
        of_attempt = {} if attempt is None else {"attempt": attempt}
        return {"t": t, "event": self.kind, **of_attempt, **self.fields()}


Event = TypeVar("Event", bound=EventRecord)


def read_back(kind: type[Event], lines: Iterable[Document]) -> Iterator[tuple[int, Event]]:
    """Read the events of a kind among lines of events.jsonl, each with its attempt; what does not fit is left out."""
    for line in lines:
        if line.get("event") == kind.kind:
            for event in decode_each(kind, [line]):
                yield decode_parts(InAttempt, line).attempt, event


class InAttempt(NamedTuple):
    """The attempt of a line; a line without one is of the first."""

    attempt: int = 0


# -- the run and its attempts --------------------------------------------------------------------------


@dataclass(frozen=True)
class RunStart(EventRecord):
    """The run directory is there."""

    kind = "run-start"
    run: str
    uid: str


@dataclass(frozen=True)
class NodesAsked(EventRecord):
    """The run waits for its nodes from `t` on; `source` is who gives them: Slurm, an engine, or `join`."""

    kind = "nodes-asked"
    source: str
    t: float


@dataclass(frozen=True)
class RunEnd(EventRecord):
    """The result is written; `exit` is the exit code of allranks."""

    kind = "run-end"
    exit: int


@dataclass(frozen=True)
class ControllerAttached(EventRecord):
    """Another controller has taken the run over."""

    kind = "controller-attached"
    pid: int


@dataclass(frozen=True)
class AttemptStart(EventRecord):
    """All that follows, up to the next of these, is of this attempt."""

    kind = "attempt-start"


@dataclass(frozen=True)
class AttemptEnd(EventRecord):
    """An attempt of the program is over everywhere, and judged."""

    kind = "attempt-end"
    spread = "record"
    record: AttemptRecord


@dataclass(frozen=True)
class SuiteEnd(EventRecord):
    """An attempt that ran the collective tests is over: tested, failed or stopped."""

    kind = "attempt-end"
    outcome: str


@dataclass(frozen=True)
class SuitePassed(EventRecord):
    """The collective tests have passed, in `seconds`: the program follows."""

    kind = "test-passed"
    ranks: int
    seconds: float


@dataclass(frozen=True)
class RetryDecided(EventRecord):
    """The attempt that failed, with this verdict, is followed by another."""

    kind = "retry"
    reason: str
    verdict: Verdict

    def fields(self) -> Document:
        """Return the reason, and the verdict as verdict.json has it."""
        return {"reason": self.reason, "verdict": encode(self.verdict)}


@dataclass(frozen=True)
class FailureNoted(EventRecord):
    """What ends from `t` on may be our doing."""

    kind = "failed"
    t: float


@dataclass(frozen=True)
class InitTimeout(EventRecord):
    """The time for the start is over."""

    kind = "init-timeout"
    seconds: float


@dataclass(frozen=True)
class StopAsked(EventRecord):
    """The user or the system wants the run to end."""

    kind = "stop-asked"
    reason: str


@dataclass(frozen=True)
class EndingBegun(EventRecord):
    """The `ranks` that run are being ended, with `grace` seconds."""

    kind = "ending"
    reason: str
    grace: float
    ranks: int


@dataclass(frozen=True)
class FindingMade(EventRecord):
    """A finding about the run."""

    kind = "finding"
    spread = "finding"
    finding: Finding


@dataclass(frozen=True)
class PlainNote(EventRecord):
    """A sentence for whoever watches."""

    kind = "note"
    message: str


@dataclass(frozen=True)
class JobProgress(EventRecord):
    """How the job of an engine gets on: of Slurm, in pods, on cloud machines."""

    kind = "job"
    job: str
    message: str


@dataclass(frozen=True)
class JoinProgress(EventRecord):
    """What node 0 says while it waits for the nodes that join."""

    kind = "join"
    message: str


@dataclass(frozen=True)
class LauncherPaused(EventRecord):
    """The controller itself did not run."""

    kind = "launcher-paused"
    seconds: float
    slept: bool
    t: float


# -- nodes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeEvent(EventRecord):
    """Something happened to a node, and its name says all of it."""

    node: str


class NodeConnecting(NodeEvent):
    """Its first channel is being opened."""

    kind = "node-connecting"


class NodeSilent(NodeEvent):
    """Several beats are missing."""

    kind = "node-silent"


class NodeBack(NodeEvent):
    """It is heard again, in time."""

    kind = "node-back"


class NodeReachedAgain(NodeEvent):
    """It gets another agent."""

    kind = "node-anew"


class SpareReady(NodeEvent):
    """A hot spare has passed the checks."""

    kind = "spare-ready"


@dataclass(frozen=True)
class NodeReady(EventRecord):
    """Its agent has said its first word."""

    kind = "node-ready"
    node: str
    hostname: str


@dataclass(frozen=True)
class NodeFactsKept(EventRecord):
    """What `diagnose` needs of a node's facts; `memory` in bytes, `deepspeed` is of accelerate's configuration."""

    kind = "facts"
    node: str
    addresses: tuple[str, ...]
    memory: int
    gpus: int
    deepspeed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NodesChecked(EventRecord):
    """The preflight check of so many checks is done."""

    kind = "looked"
    checks: int


@dataclass(frozen=True)
class NodeLost(EventRecord):
    """Nothing was heard from a node for the whole lease."""

    kind = "node-lost"
    node: str
    last_heard: float
    t: float


@dataclass(frozen=True)
class NodeReplaced(EventRecord):
    """A hot spare has taken a node's place."""

    kind = "node-replaced"
    node: str
    by: str


@dataclass(frozen=True)
class NodeClean(EventRecord):
    """A node has ended its ranks; `left` is what it could not end."""

    kind = "node-clean"
    node: str
    left: tuple[RemainingProcess, ...]
    t: float


@dataclass(frozen=True)
class FaultReported(EventRecord):
    """An agent's own trouble."""

    kind = "fault"
    node: str
    id: str
    message: str
    t: float


@dataclass(frozen=True)
class TreeListed(EventRecord):
    """What --sync ships; `left_out` are checkpoints too large for it."""

    kind = "tree"
    root: str
    files: int
    bytes: int
    sha256: str
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class TreeArrived(EventRecord):
    """The synced tree lies on a node."""

    kind = "tree-arrived"
    node: str
    path: str
    files: int


# -- the rendezvous check ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanMade(EventRecord):
    """How many ranks each node gets, in the order of the node ranks."""

    kind = "plan"
    world_size: int
    ranks: Mapping[str, int]


@omit_empty("node", "modules", "seconds", "ranks", "why")
@dataclass(frozen=True)
class TemplateNoted(EventRecord):
    """What became of a template, the process that imports once for the ranks of later attempts; `node` has it.

    `state` is ready (it took `seconds` to import `modules`), used (so many `ranks` are forked from it), or off: `why`
    says why ranks are started instead. Without a node it is off for all of them.
    """

    kind = "template"
    state: str
    node: str = ""
    modules: int | None = None
    seconds: float | None = None
    ranks: int | None = None
    why: str = ""


@dataclass(frozen=True)
class GateListening(EventRecord):
    """The master's port is open: every node tries these addresses."""

    kind = "gate-listening"
    node: str
    addresses: tuple[str, ...]
    port: int


@dataclass(frozen=True)
class GateProved(EventRecord):
    """Every node has reached the master at this address."""

    kind = "gate-proved"
    node: str
    address: str
    port: int
    seconds: float
    ranks: Mapping[str, int]


# -- ranks ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutputsTemporary(EventRecord):
    """Where the program's files go that are temporary, by node."""

    kind = "outputs-temporary"
    nodes: Mapping[str, str]


@dataclass(frozen=True)
class RankStarted(EventRecord):
    """A rank's process runs."""

    kind = "rank-started"
    node: str
    rank: int
    pid: int
    t: float


@dataclass(frozen=True)
class RankEvent(EventRecord):
    """A rank has come to a point of its program."""

    node: str
    rank: int
    t: float


class RankEntered(RankEvent):
    """It is in init_process_group."""

    kind = "rank-entered"


class RankInitialised(RankEvent):
    """It is through init_process_group."""

    kind = "rank-initialised"


@dataclass(frozen=True)
class RankDeparted(RankEvent):
    """It has called destroy_process_group, `at` a place in the program where that is known."""

    kind = "rank-departed"
    at: str = ""


@dataclass(frozen=True)
class AllInitialised(EventRecord):
    """All ranks are through init_process_group, `seconds` after the start of the run."""

    kind = "all-initialised"
    seconds: float
    ranks: int
    t: float


@dataclass(frozen=True)
class FirstStep(EventRecord):
    """A rank has shown its first step, `seconds` after the start of the run."""

    kind = "first-step"
    seconds: float


@dataclass(frozen=True)
class StepsResumed(EventRecord):
    """A further attempt has shown its first step: attempts before came to `reached`, and `lost` steps are done again.

    `starts_over`: it is the first step of the first attempt, so no checkpoint was loaded.
    """

    kind = "resumed"
    step: int
    reached: int
    lost: int
    starts_over: bool


@omit_empty("reached", "redone_t")
@dataclass(frozen=True)
class StepsSeen(EventRecord):
    """Steps of an attempt so far: the first that a rank showed, at `first_t`, the `furthest`, and the last's `last_t`.

    Of a further attempt, `reached` is how far those before came, and it has come there again at `redone_t`. The last of
    these events of an attempt counts.
    """

    kind = "steps"
    first: int
    first_t: float
    furthest: int
    last_t: float
    reached: int | None = None
    redone_t: float | None = None


@dataclass(frozen=True)
class StepsWentOn(EventRecord):
    """A rank has shown a step again, after a standstill that `hang-noted` tells of."""

    kind = "went-on"
    t: float


@dataclass(frozen=True)
class StragglerWait(EventRecord):
    """From `since` to `t` the other ranks spent a `share` of the time (0 to 1) waiting for stragglers."""

    kind = "straggler-wait"
    since: float
    t: float
    share: float


@dataclass(frozen=True)
class RankLeaving(EventRecord):
    """A rank's program has ended, or failed; `waits`: its process goes on, for `threads`."""

    kind = "rank-leaving"
    node: str
    rank: int
    what: str
    code: int
    threads: tuple[str, ...]
    waits: bool
    t: float


@dataclass(frozen=True)
class RankBecame(EventRecord):
    """A rank is another program now, by exec."""

    kind = "rank-became"
    node: str
    rank: int
    program: str
    t: float


@omit_empty("code", "signal", "error")
@dataclass(frozen=True)
class RankExit(EventRecord):
    """A rank's main process has ended. `error`, its error file, has a file of its own in the run directory."""

    kind = "rank-exit"
    kept_apart = "error"
    node: str
    rank: int
    t: float
    expected: bool
    code: int | None
    signal: int | None
    pid: int | None
    oom_kills: int
    error: JsonObject | None = None

    def fields(self) -> Document:
        """Return the fields without the error file."""
        return EventRecord.fields(replace(self, error=None))


@dataclass(frozen=True)
class SignalPassed(EventRecord):
    """SIGUSR1 or SIGUSR2 was passed on to so many ranks; `source`: the node whose task got it, or None."""

    kind = "signal"
    signal: str
    ranks: int
    source: str | None


@dataclass(frozen=True)
class SaveAsked(EventRecord):
    """All ranks that call should_save are asked to save at one step. `reason`: a signal's name, or why the run ends."""

    kind = "save-asked"
    reason: str


@dataclass(frozen=True)
class SaveAgreed(EventRecord):
    """None of so many ranks had come to `step`, which was the last of `proposals`: all save there."""

    kind = "save-agreed"
    step: int
    ranks: int
    proposals: int


@dataclass(frozen=True)
class SaveDone(EventRecord):
    """So many ranks of those that call should_save have saved at `step`, and the `others`, by rank, at another one.

    They have called it again or ended, `seconds` after they were asked.
    """

    kind = "saved"
    step: int
    ranks: int
    of: int
    seconds: float
    others: Mapping[str, int]


@dataclass(frozen=True)
class HangSuspected(EventRecord):
    """Nothing has moved for `quiet` seconds: stack samples are taken."""

    kind = "hang-suspected"
    quiet: float


@dataclass(frozen=True)
class HangConcluded(EventRecord):
    """Nothing has moved for `quiet` seconds, and it is known who is waited for."""

    kind = "hang"
    spread = "hang"
    quiet: float
    hang: Hang


@dataclass(frozen=True)
class HangNoted(EventRecord):
    """Nothing has moved for `quiet` seconds, and the run goes on: who is waited for works, or --on-hang says so."""

    kind = "hang-noted"
    spread = "hang"
    quiet: float
    hang: Hang


# -- output --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutputDropped(EventRecord):
    """`bytes` of a rank's output found no room on its node, `total` with those before.

    `why` is full (the disk) or bound (the spool has its share of it).
    """

    kind = "dropped"
    node: str
    rank: int
    bytes: int
    total: int
    why: str


@dataclass(frozen=True)
class LogContinued(EventRecord):
    """What the node of this index sends of a stream comes after the first `at` bytes of its file."""

    kind = "log-continued"
    index: int
    stream: str
    at: int
