"""Facts of a run: what happened, one record each, and one line of events.jsonl each (pure).

The controller stamps a fact with its node, time and attempt, appends it, and hands that same object on: to the gang, to
the folds (incident, ledger, timeline) and to whoever shows the run. A saved run is read back as the same objects. What
an agent says of its ranks and of itself is defined among the messages, as both ends must agree on it; what the
controller finds or decides stands here. docs/reference/events.md has the table.
"""

from __future__ import annotations

from typing import Callable, Dict, Generic, Iterable, Iterator, Mapping, Optional, Tuple, Type, TypeVar, Union

from allranks.findings import Finding, Hang, Verdict

from .attempts import AttemptEnd, SavedStep
from .codec import by_name, encode, fitting, omit_empty, spread
from .jsontext import Json, JsonObject
from .messages import BoundMessage, EndedMessage, ExitMessage, FaultMessage, StartedMessage, TemplateMessage
from .node_names import NodeFiles
from .records import NamedTuple

LATEST = 1e11  # unix seconds: beyond, a clock is wrong
Kind = TypeVar("Kind")
Of = TypeVar("Of", covariant=True)
Result = TypeVar("Result")


class Stamped(NamedTuple, Generic[Of]):
    """A fact with its node (empty: of the run), its time (unix seconds, the controller's clock), and its attempt.

    `role` is empty for the run and for the role whose success ends it; other roles have attempts of their own.
    """

    node: str
    t: float
    attempt: Optional[int]  # None: of the run as a whole
    fact: Of
    role: str = ""


# -- the run and its attempts --------------------------------------------------------------------------


class RunStart(NamedTuple):
    """The run directory is there."""

    run: str
    uid: str


class NodesAsked(NamedTuple):
    """The run waits for its nodes from now on; `source` is who gives them: Slurm, an engine, or `join`."""

    source: str


class RunEnd(NamedTuple):
    """The result is written; `exit` is the exit code of allranks."""

    exit: int


class ControllerAttached(NamedTuple):
    """Another controller has taken the run over."""

    pid: int


class AttemptStart(NamedTuple):
    """All that follows, up to the next of these, is of this attempt."""


class SuitePassed(NamedTuple):
    """The collective tests have passed, in `seconds`: the program follows."""

    ranks: int = 0
    seconds: float = 0.0


class RetryDecided(NamedTuple):
    """The attempt that failed, with this verdict, is followed by another."""

    reason: str
    verdict: Verdict


class FailureNoted(NamedTuple):
    """What ends from now on may be our doing."""


class InitTimeout(NamedTuple):
    """The time for the start is over."""

    seconds: float = 0.0


class StopAsked(NamedTuple):
    """The user or the system wants the run to end, with `grace` seconds for the ranks."""

    reason: str
    grace: float = 0.0


class EndingBegun(NamedTuple):
    """The `ranks` that run are being ended, with `grace` seconds."""

    reason: str
    grace: float = 0.0
    ranks: Optional[int] = None


class PlainNote(NamedTuple):
    """A sentence for whoever watches."""

    message: str


class JobProgress(NamedTuple):
    """How the job of an engine gets on: of Slurm, in pods, on cloud machines."""

    job: str
    message: str


class JoinProgress(NamedTuple):
    """What node 0 says while it waits for the nodes that join."""

    message: str


@omit_empty("waited")
class LauncherPaused(NamedTuple):
    """The controller itself did not run for `seconds`, until now: its machine slept, or its process was stopped.

    `ended`: its process had ended, and another controller took the run over then. `waited`: it ran and renewed the
    leases, and could do no more, as where the disk of the run directory does not answer.
    """

    seconds: float
    slept: bool
    ended: bool = False
    waited: bool = False


# -- nodes ---------------------------------------------------------------------------------------------


class NodeConnecting(NamedTuple):
    """The node's first channel is being opened."""


class NodeReady(NamedTuple):
    """Its agent has said its first word."""

    hostname: str = ""


class NodeSilent(NamedTuple):
    """Several beats are missing; the channel is being renewed."""


class NodeBack(NamedTuple):
    """It is heard again, in time."""


class NodeLost(NamedTuple):
    """Nothing was heard from it for the whole lease: its agent, if it lives, ends its ranks.

    `hung_up`: its connection was closed from there, and no other came. Where its host answers, that is known sooner.
    """

    last_heard: float = 0.0  # unix seconds
    hung_up: bool = False


class NodeReachedAgain(NamedTuple):
    """It gets another agent."""


class NodeAwaited(NamedTuple):
    """It was lost and can't be reached yet, and why: after `waited` seconds, `left` are left of --node-wait."""

    waited: float
    left: float
    message: str = ""


class NodeReplaced(NamedTuple):
    """A hot spare has taken its place."""

    by: str


class NodeAdded(NamedTuple):
    """The host list has it now: it is reached, and stands by."""

    host: str = ""


class NodeLeft(NamedTuple):
    """The node has no place in the attempts that follow, until it is taken in again."""

    why: str = ""


class NodeTakenIn(NamedTuple):
    """The node, which stood by, has a place again."""


class RegrowBegun(NamedTuple):
    """The attempt ends, so that nodes that stand by get a place: these."""

    nodes: Tuple[str, ...] = ()


class WorldChanged(NamedTuple):
    """An attempt has another number of nodes or ranks than the one before."""

    nodes: int = 0
    most: int = 0  # nodes that were asked for
    world_size: int = 0
    former: int = 0  # world size


class SpareReady(NamedTuple):
    """A hot spare has passed the checks."""


class NodeFactsKept(NamedTuple):
    """What `diagnose` needs of a node's facts."""

    addresses: Tuple[str, ...] = ()
    memory: int = 0  # bytes
    gpus: int = 0
    deepspeed: Mapping[str, int] = {}  # numbers of accelerate's configuration
    scheduler: str = ""  # slurm, kubernetes or none
    job: str = ""  # its number, or the pod's name


class NodesChecked(NamedTuple):
    """The preflight check of so many checks is done."""

    checks: int = 0


class WorkingTree(NamedTuple):
    """What --sync ships; `left_out` are checkpoints over `limit` bytes, with their sizes."""

    root: str
    files: int
    bytes: int  # that the files hold
    sha256: str = ""  # of the archive
    left_out: Tuple[str, ...] = ()
    limit: int = 0
    below: str = ""  # the caller's position below `root`, which the ranks take too
    packed: int = 0  # bytes of the archive

    def workdir(self, node_dir: str) -> str:
        """Return the ranks' working directory on a node."""
        return f"{NodeFiles(node_dir).tree}/{self.below}".rstrip("/")


class TreeArrived(NamedTuple):
    """The synced tree lies on the node."""

    path: str = ""
    files: int = 0


# -- the rendezvous check ------------------------------------------------------------------------------


class PlanMade(NamedTuple):
    """How many ranks each node gets, in the order of the node ranks."""

    world_size: int
    ranks: Mapping[str, int] = {}

    @property
    def dealt(self) -> Dict[str, range]:
        """Which ranks each node gets."""
        dealt = {}
        first = 0
        for node, count in self.ranks.items():
            dealt[node] = range(first, first + count)
            first += count
        return dealt


class GateListening(NamedTuple):
    """The master's port is open: every node tries these addresses."""

    addresses: Tuple[str, ...] = ()
    port: int = 0


class GateProved(NamedTuple):
    """Every node has reached the master at this address."""

    address: str = ""
    port: int = 0
    seconds: float = 0.0
    ranks: Mapping[str, int] = {}


# -- ranks ---------------------------------------------------------------------------------------------


class OutputsTemporary(NamedTuple):
    """Where the program's files go that are temporary, by node."""

    nodes: Mapping[str, str]


class RankEntered(NamedTuple):
    """The rank is in init_process_group."""

    rank: int


@omit_empty("limit")
class RankInitialised(NamedTuple):
    """The rank is through init_process_group; its group gives up a collective after `limit` seconds."""

    rank: int
    limit: Optional[float] = None


class RankDeparted(NamedTuple):
    """The rank has called destroy_process_group, `at` a place in the program where that is known."""

    rank: int
    at: str = ""


class AllInitialised(NamedTuple):
    """All ranks are through init_process_group, `seconds` after the start of the run."""

    seconds: float = 0.0
    ranks: int = 0


class FirstStep(NamedTuple):
    """A rank has shown its first step, `seconds` after the start of the run."""

    seconds: float


class StepsResumed(NamedTuple):
    """A further attempt has shown its first step: attempts before came to `reached`, and `lost` steps are done again.

    `starts_over`: it is the first step of the first attempt, so no checkpoint was loaded.
    """

    step: int
    reached: int
    lost: int
    starts_over: bool


@omit_empty("reached", "redone_t")
class StepsSeen(NamedTuple):
    """Steps of an attempt so far: the first that a rank showed, at `first_t`, the `furthest`, and the last's `last_t`.

    Of a further attempt, `reached` is how far those before came, and it has come there again at `redone_t`. The last of
    these facts of an attempt counts.
    """

    first: int
    first_t: float
    furthest: int
    last_t: float
    reached: Optional[int] = None
    redone_t: Optional[float] = None


class StepsWentOn(NamedTuple):
    """A rank has shown a step again, after a standstill that `hang-noted` tells of."""


class StragglerWait(NamedTuple):
    """From `since` until now the other ranks spent a `share` of the time (0 to 1) waiting for stragglers."""

    since: float
    share: float


class RoleReady(NamedTuple):
    """The role has started, `seconds` after its ranks: its `test` has passed with this `answer`."""

    seconds: float
    test: str = ""
    answer: str = ""


class LookedRank(NamedTuple):
    """What a rank does, as another role may wait for it.

    `call`: the collective that one of its threads is in. `at`: where that thread, or the one that is at work, stands.
    `works`: it computes, reads or writes. `quiet`: seconds since it showed something last. `sockets`: its connections,
    as (its own address, the peer's). `stack`: the calls of that thread, the innermost first.
    """

    rank: int
    node: str
    call: str = ""
    at: str = ""
    does: str = ""
    works: bool = False
    quiet: float = 0.0
    sockets: Tuple[Tuple[str, str], ...] = ()
    stack: Tuple[str, ...] = ()


class RoleLooked(NamedTuple):
    """What the ranks of a role do, of which another role stands still."""

    ranks: Tuple[LookedRank, ...]


class RankLeaving(NamedTuple):
    """A rank's program has ended, or failed; `waits`: its process goes on, for `threads`."""

    rank: int
    what: str = ""
    code: int = 0
    threads: Tuple[str, ...] = ()
    waits: bool = False


class RankBecame(NamedTuple):
    """A rank is another program now, by exec."""

    rank: int
    program: str


class SignalPassed(NamedTuple):
    """SIGUSR1 or SIGUSR2 was passed on to so many ranks; `source`: the node whose task got it, or None."""

    signal: str
    ranks: int
    source: Optional[str] = None


class SaveAsked(NamedTuple):
    """All ranks that call should_save are asked to save at one step. `reason`: a signal's name, or why the run ends."""

    reason: str


class SaveAgreed(NamedTuple):
    """None of so many ranks had come to `step`, which was the last of `proposals`: all save there."""

    step: int
    ranks: int
    proposals: int


@spread("saved")
class SaveDone(NamedTuple):
    """Ranks have saved: they have called should_save again or ended, `seconds` after they were asked."""

    saved: SavedStep
    seconds: float


@omit_empty("limit")
class HangSuspected(NamedTuple):
    """Nothing has moved for `quiet` seconds: stack samples are taken. The ranks would give up after `limit`."""

    quiet: float = 0.0
    limit: Optional[float] = None


@spread("hang")
class HangConcluded(NamedTuple):
    """Nothing has moved for `quiet` seconds, and it is known who is waited for."""

    quiet: float
    hang: Hang


@spread("hang")
class HangNoted(NamedTuple):
    """Nothing has moved for `quiet` seconds, and the run goes on: who is waited for works, or --on-hang says so."""

    quiet: float
    hang: Hang


# -- output --------------------------------------------------------------------------------------------


class OutputDropped(NamedTuple):
    """`bytes` of a rank's output found no room on its node, `total` with those before."""

    rank: int
    bytes: int
    total: int = 0
    why: str = ""  # full (the disk) or bound (the spool has its share of it)


class LogContinued(NamedTuple):
    """What the node of this index sends of a stream comes after the first `at` bytes of its file."""

    index_: int
    stream: str
    at: int


# -- lines of events.jsonl -----------------------------------------------------------------------------

Fact = Union[
    RunStart,
    NodesAsked,
    RunEnd,
    ControllerAttached,
    AttemptStart,
    AttemptEnd,
    SuitePassed,
    RetryDecided,
    FailureNoted,
    InitTimeout,
    StopAsked,
    EndingBegun,
    Finding,
    PlainNote,
    JobProgress,
    JoinProgress,
    LauncherPaused,
    NodeConnecting,
    NodeReady,
    NodeSilent,
    NodeBack,
    NodeLost,
    NodeReachedAgain,
    NodeAwaited,
    NodeReplaced,
    NodeAdded,
    NodeLeft,
    NodeTakenIn,
    RegrowBegun,
    WorldChanged,
    NodeFactsKept,
    NodesChecked,
    EndedMessage,
    FaultMessage,
    SpareReady,
    WorkingTree,
    TreeArrived,
    PlanMade,
    BoundMessage,
    TemplateMessage,
    GateListening,
    GateProved,
    OutputsTemporary,
    StartedMessage,
    RankEntered,
    RankInitialised,
    RankDeparted,
    RankLeaving,
    RankBecame,
    ExitMessage,
    AllInitialised,
    FirstStep,
    StepsResumed,
    StepsSeen,
    StepsWentOn,
    StragglerWait,
    RoleReady,
    RoleLooked,
    SignalPassed,
    SaveAsked,
    SaveAgreed,
    SaveDone,
    HangSuspected,
    HangConcluded,
    HangNoted,
    OutputDropped,
    LogContinued,
]

# A line is named as its fact is called, or as here. Files of users have these names: a class that gets another name
# keeps its line's name by a row.
_OTHER_NAMES: Dict[type, str] = {
    SuitePassed: "test-passed",
    RetryDecided: "retry",
    FailureNoted: "failed",
    EndingBegun: "ending",
    PlainNote: "note",
    JobProgress: "job",
    JoinProgress: "join",
    NodeReachedAgain: "node-anew",
    RegrowBegun: "regrow",
    WorldChanged: "world",
    NodeFactsKept: "facts",
    NodesChecked: "looked",
    EndedMessage: "node-clean",
    FaultMessage: "fault",
    WorkingTree: "tree",
    PlanMade: "plan",
    BoundMessage: "bound",
    TemplateMessage: "template",
    StartedMessage: "rank-started",
    ExitMessage: "rank-exit",
    StepsResumed: "resumed",
    StepsSeen: "steps",
    StepsWentOn: "went-on",
    SignalPassed: "signal",
    SaveDone: "saved",
    HangConcluded: "hang",
    OutputDropped: "dropped",
}
KINDS: Dict[str, Type[Fact]] = by_name(Fact, ending="", others=_OTHER_NAMES)
NAMES: Dict[type, str] = {kind: name for name, kind in KINDS.items()}
# Each rank of a large run has one of each. They hold numbers alone, so their lines are not searched for secrets.
WITHOUT_TEXTS = (StartedMessage, RankEntered, RankInitialised)
# What an agent says beside what a reader of a run needs. An error file has a file of its own in the run directory.
NOT_KEPT: Dict[type, Tuple[str, ...]] = {
    ExitMessage: ("error", "calls", "background"),
    EndedMessage: ("reason", "seconds"),
    FaultMessage: ("rank", "traceback"),
    StopAsked: ("grace",),
    WorkingTree: ("below", "packed"),
}


class Stamp(NamedTuple):
    """What a line has beside its fact."""

    t: float
    event: str
    node: str = ""
    attempt: Optional[int] = None
    role: str = ""


def write_line(stamped: Stamped[Fact]) -> JsonObject:
    """Make the line of events.jsonl of a fact."""
    fact = stamped.fact
    kind = type(fact)
    fields: JsonObject = dict(encode(fact))
    for name in ("t", "attempt", *NOT_KEPT.get(kind, ())):
        fields.pop(name, None)
    line: JsonObject = {"t": stamped.t, "event": NAMES[kind]}
    if stamped.attempt is not None:
        line["attempt"] = stamped.attempt
    if stamped.node:
        line["node"] = stamped.node
    if stamped.role:
        line["role"] = stamped.role
    return {**line, **fields}


def read_line(line: Json) -> Optional[Stamped[Fact]]:
    """Read a line of events.jsonl; None for one of another version, or of no time.

    Of a damaged one what fits is taken, where that is what the fact needs.
    """
    stamp = fitting(Stamp, line)
    if stamp is None or not 0 <= stamp.t < LATEST or not isinstance(line, dict):
        return None
    kind = KINDS.get(stamp.event)
    if kind is None:
        return None
    fact = fitting(kind, line)
    if fact is None:
        return None
    return Stamped(stamp.node, stamp.t, stamp.attempt, fact, stamp.role)


def read_lines(lines: Iterable[Json]) -> Iterator[Stamped[Fact]]:
    """Read the lines that are facts."""
    for line in lines:
        stamped = read_line(line)
        if stamped is not None:
            yield stamped


def of_kind(facts: Iterable[Stamped[Fact]], kind: Type[Kind]) -> Iterator[Stamped[Kind]]:
    """Give the facts of a kind."""
    for stamped in facts:
        if isinstance(stamped.fact, kind):
            yield Stamped(stamped.node, stamped.t, stamped.attempt, stamped.fact, stamped.role)


def on(kind: Type[Kind], take: Callable[[Stamped[Kind]], Result]) -> Tuple[type, Callable[[Stamped[Fact]], Result]]:
    """Give the row of a table by kind: which function takes a fact of it. A wrong pair is a type error."""
    return kind, take  # type: ignore[return-value]  # the table is asked by the kind of the fact
