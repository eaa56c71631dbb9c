"""The documents of a run as typed records: run.json, status.json, result.json and verdict.json (pure).

A run directory lies on a file system that others write to, and disks fail. So every field has a default, and what has
another type than its field is left out when a document is read (`decode_parts`): a reader never meets a text in the
place of a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from allranks.findings import Finding, Verdict
from allranks.protocol.attempts import AttemptEnd
from allranks.protocol.codec import decode_each, decode_parts, needs, omit_empty, omit_none
from allranks.protocol.jsontext import Json, JsonObject
from allranks.protocol.processes import RemainingProcess
from allranks.protocol.samples import NodeUsage
from allranks.settings.runspec import Limits, Role, beat_of

GOING_ON = ("starting", "gating", "proving", "running", "ending")  # states of a run, in their order
OVER = ("done", "failed", "stopped")  # states of a run that has ended
ORPHANED = "orphaned"  # its controller has died, and nothing says that it is over
TEMPORARY = ("/tmp/", "/var/tmp/", "/dev/shm/")  # what lies there may be deleted tomorrow
LONGEST = 1e15  # seconds: beyond, a rate is as good as none
Document = JsonObject  # as a run directory keeps it
Left = Mapping[str, tuple[RemainingProcess, ...]]  # processes or objects that could not be ended, by node


# -- run.json ------------------------------------------------------------------------------------------------


class ControllerRecord(NamedTuple):
    """The process that controls a run, or follows it: what `stop` and `attach` look for."""

    host: str | None = None
    pid: int | None = None
    start_time: float | None = None  # as /proc/PID/stat has it


@needs("name")
@omit_empty("address", "life", "role")
@dataclass(frozen=True)
class NodeEntry:
    """A node. `node_rank`: its place in the gang, None for a hot spare. `address`: what the host list has for it.

    `life` counts the agents that it has had before this one. `role`: the part of the run whose node it is.
    """

    name: str = ""
    index: int | None = None
    host: str | None = None
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    is_local: bool | None = None
    node_rank: int | None = None
    address: str | None = None
    life: int | None = None
    role: str = ""


@omit_empty("engine", "slurm")
@dataclass(frozen=True)
class RunDocument:
    """run.json; `source` says where the nodes came from, `engine` and `slurm` are an engine's own fields.

    `withheld`: variables that were set where the run began, and that ranks on other hosts did not get.
    """

    run: str = ""
    uid: str = ""
    started: float | None = None  # unix seconds
    command: tuple[str, ...] = ()
    spec: Mapping[str, Json] = field(default_factory=dict)
    nodes: tuple[NodeEntry, ...] = ()
    source: str = ""
    workdir: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    controller: ControllerRecord | None = None
    engine: Mapping[str, Json] = field(default_factory=dict)
    slurm: Mapping[str, Json] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()

    @property
    def launcher(self) -> str:
        """What starts the ranks, as the settings name it."""
        return str(self.spec.get("launcher") or "direct")

    @property
    def roles(self) -> list[Role]:
        """Read the roles, the one first whose success ends the run; none of a plain run."""
        roles = decode_each(Role, self.spec.get("roles"))
        return sorted(roles, key=lambda role: role.ends != "run")

    @property
    def gang(self) -> list[NodeEntry]:
        """List the nodes in the order of their node ranks, without hot spares; all of them where none has a rank."""
        if all(entry.node_rank is None for entry in self.nodes):
            return list(self.nodes)
        ranked = [entry for entry in self.nodes if entry.node_rank is not None]
        return sorted(ranked, key=lambda entry: entry.node_rank or 0)


class OpenedRole(NamedTuple):
    """A role of a run that opens, and those that it starts after."""

    name: str
    nodes: tuple[str, ...]
    command: tuple[str, ...]
    after: tuple[str, ...]


@omit_empty("spares", "environment")
class RunOpened(NamedTuple):
    """What a run opens with; `environment` says which variables were handed over."""

    run: str = ""
    directory: str = ""
    command: tuple[str, ...] = ()
    launcher: str = ""
    source: str = ""
    nodes: tuple[NodeEntry, ...] = ()
    spares: tuple[NodeEntry, ...] = ()
    environment: str = ""
    roles: tuple[OpenedRole, ...] = ()


# -- status.json ---------------------------------------------------------------------------------------------


class Master(NamedTuple):
    """Where the ranks meet."""

    address: str | None = None
    port: int | None = None


@needs("rank")
@dataclass(frozen=True)
class RankStatus:
    """A rank: steps a second in `rate`, unix seconds in `last_output`; None where nothing was seen.

    `total_steps` and `epoch` are as the program prints them. Where no rank shows a step, `collectives` says how many a
    second the rank has begun. `lateness_s` is the median of the seconds by which it comes late to collectives.
    """

    rank: int = -1
    local_rank: int = 0
    state: str = ""
    pid: int | None = None
    step: int | None = None
    rate: float | None = None
    last_output: float | None = None
    total_steps: int | None = None
    epoch: float | None = None
    collectives: float | None = None
    lateness_s: float | None = None


@needs("name")
@omit_empty("role", "warnings")
@dataclass(frozen=True)
class NodeStatus:
    """A node, with the ranks that it has, and what its machine did last (`usage`, sampled while ranks run).

    `role`: the part of the run whose node it is. `warnings`: what ails it, and has ended nothing.
    """

    name: str = ""
    index: int | None = None
    address: str | None = None
    state: str = ""
    ranks: tuple[RankStatus, ...] = ()
    usage: NodeUsage | None = None
    role: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class StatusDocument:
    """status.json; `goodput` so far is from 0 to 1, None where no step was seen yet."""

    run: str = ""
    state: str = ""
    t: float = 0.0  # unix seconds
    attempt: int = 0
    master: Master | None = None
    world_size: int | None = None
    nodes: tuple[NodeStatus, ...] = ()
    goodput: float | None = None

    @property
    def rank_count(self) -> int:
        """How many ranks the run has, also those of which only their launcher knows."""
        listed = [rank.rank + 1 for node in self.nodes for rank in node.ranks]
        return max([self.world_size or 0, *listed])


@dataclass(frozen=True)
class RunReport(StatusDocument):
    """A run as a command describes it: its state at the time `t`, its directory, and its verdict where it has one."""

    directory: str = ""
    verdict: Verdict | None = None


class RunProgress(NamedTuple):
    """The step of the rank that is behind, the furthest one, the lowest rate (steps a second), and the steps in all."""

    step: int | None = None
    furthest: int | None = None
    rate: float | None = None
    total: int | None = None

    @classmethod
    def of(cls, nodes: Iterable[NodeStatus]) -> RunProgress:
        """Take the figures of all ranks; the total only where all that say one agree."""
        ranks = [rank for node in nodes for rank in node.ranks]
        steps = [rank.step for rank in ranks if rank.step is not None]
        rates = [rank.rate for rank in ranks if rank.rate is not None]
        totals = {rank.total_steps for rank in ranks if rank.total_steps is not None}
        total = totals.pop() if len(totals) == 1 else None
        return cls(min(steps, default=None), max(steps, default=None), min(rates, default=None), total)

    @property
    def seconds_left(self) -> float | None:
        """Estimate the seconds to the last step at the present rate; None where total or rate is unknown."""
        if self.total is None or self.step is None or not self.rate or self.step > self.total:
            return None
        seconds = (self.total - self.step) / self.rate
        if seconds < LONGEST:
            return seconds
        return None

    @property
    def step_text(self) -> str:
        """Write `412`, `412/1000`, or nothing.

        >>> RunProgress(412, 413, 2.0, 1000).step_text, RunProgress(412).step_text, RunProgress().step_text
        ('412/1000', '412', '')
        """
        if self.step is None:
            return ""
        if self.total is not None:
            return f"{self.step}/{self.total}"
        return str(self.step)


# States of a node and of a rank that tell of a run in progress.
_NODE_GOES_ON = ("connecting", "ready", "running", "silent")
_RANK_GOES_ON = ("waiting", "started", "initialised")


def at_rest(status: StatusDocument) -> StatusDocument:
    """Return a status as it is once the run is over: the last one that was written may tell of what went on then."""
    nodes = []
    for node in status.nodes:
        ranks = [replace(rank, state="ended") if rank.state in _RANK_GOES_ON else rank for rank in node.ranks]
        state = "ended" if node.state in _NODE_GOES_ON else node.state
        nodes.append(replace(node, state=state, ranks=tuple(ranks)))
    return replace(status, nodes=tuple(nodes))


# -- verdict.json, result.json -------------------------------------------------------------------------------


@omit_none
class Timing(NamedTuple):
    """Seconds from the start of a run to its end (the wall time), its process groups and its first step."""

    total: float | None = None
    initialised: float | None = None
    first_step: float | None = None


class ProgramExit(NamedTuple):
    """How the program itself ended: the rank at fault, else rank 0."""

    rank: int | None = None
    code: int | None = None
    signal: int | None = None


class Unfetched(NamedTuple):
    """A node whose logs end before its ranks did: how far each log goes, and where the rest is."""

    node_dir: str = ""
    fetched_bytes: Mapping[str, int] = {}


@dataclass(frozen=True)
class TimeLedger:
    """Into which parts the wall time of a run splits, in seconds; docs/explanation/time-ledger.md defines each.

    The parts do not overlap, and with `unaccounted` they add up to `wall`. None: not known.
    """

    wall: float = 0.0
    scheduler: float = 0.0
    preflight: float = 0.0
    imports: float = 0.0
    start: float = 0.0
    useful: float | None = None  # None: no step was seen
    slow_share: float | None = None  # None: not measured; `useful` then has it
    computed_twice: float | None = None
    without_steps: float = 0.0
    hang: float = 0.0
    after_last_step: float = 0.0
    teardown: float = 0.0
    restart: float = 0.0
    unaccounted: float = 0.0

    @property
    def goodput(self) -> float | None:
        """Give the share of the wall time that was useful, from 0 to 1; None where no step was seen."""
        if self.useful is None or self.wall <= 0:
            return None
        return round(self.useful / self.wall, 4)


class RoleResult(NamedTuple):
    """How a role ended: done, failed, or stopped because the run was over. `time_ledger` has its restarts."""

    outcome: str = ""
    nodes: tuple[str, ...] = ()
    ranks: int = 0
    attempts: tuple[AttemptEnd, ...] = ()
    cause: str = ""
    time_ledger: TimeLedger = TimeLedger()


@needs("exit")
@omit_empty("roles", "no_requeue")
@dataclass(frozen=True)
class ResultDocument:
    """result.json; `outputs` are directories by node. `goodput` is from 0 to 1, None where no step was seen.

    Where a run has several roles, `attempts`, `timing` and the ledger are those of the one whose success ends it.
    """

    run: str = ""
    directory: str = ""
    exit: int = 0
    program_exit: ProgramExit = field(default_factory=ProgramExit)
    verdict: Verdict | None = None
    findings: tuple[Finding, ...] = ()
    attempts: tuple[AttemptEnd, ...] = ()
    timing: Timing = field(default_factory=Timing)
    left: Left = field(default_factory=dict)
    unfetched: Mapping[str, Unfetched] = field(default_factory=dict)
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    undecodable: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    goodput: float | None = None
    time_ledger: TimeLedger | None = None
    roles: Mapping[str, RoleResult] = field(default_factory=dict)
    no_requeue: str = ""  # why another try would fail too; empty where that is not known

    @property
    def cause(self) -> str | None:
        """The label of its verdict; None where it has none."""
        if self.verdict is None:
            return None
        return self.verdict.cause


class GroupResult(NamedTuple):
    """Nodes that were tested in one gang; `run` is the directory of their own run."""

    nodes: tuple[str, ...] = ()
    ok: bool = False
    seconds: float | None = None
    run: str = ""


class StageResult(NamedTuple):
    """A stage of `--suite staged`; `meaning` says what its failed groups have in common."""

    name: str = ""
    groups: tuple[GroupResult, ...] = ()
    meaning: str = ""


@needs("exit")
@omit_empty("run", "directory", "suite", "nodes", "ranks", "started", "meaning", "stages", "roles")
@dataclass(frozen=True)
class SuiteResult(ResultDocument):
    """result.json of a test. The rows of `collectives`, `bandwidth` and `links` are as the ranks wrote them.

    `meaning` says what follows. A suite that ran in `stages` has the runs of its groups there.
    """

    ok: bool = False
    collectives: tuple[Mapping[str, Json], ...] = ()
    bandwidth: tuple[Mapping[str, Json], ...] = ()
    links: tuple[Mapping[str, Json], ...] = ()
    statement: tuple[str, ...] = ()
    suite: str = ""
    nodes: tuple[str, ...] = ()
    ranks: int | None = None
    started: float | None = None  # unix seconds
    meaning: str = ""
    stages: tuple[StageResult, ...] = ()


@omit_empty("cause")
class ErrorDocument(NamedTuple):
    """What any command with --json prints where it fails; `cause` is there for a defect of allranks."""

    error: str
    exit: int
    cause: str = ""


# -- evidence/preflight.json ---------------------------------------------------------------------------------


@omit_empty("hosts")
@needs("nodes")
class PreflightDocument(NamedTuple):
    """evidence/preflight.json. `request`: what the nodes were checked for; `covered` says which pairs were tried.

    `hosts` are what the list has for each node, which may have sent another name.
    """

    schema: int = 0
    t: float = 0.0  # unix seconds
    checks: tuple[str, ...] = ()
    request: Mapping[str, Json] = {}
    nodes: Mapping[str, Mapping[str, Json]] = {}
    unreachable: tuple[Finding, ...] = ()
    covered: str = ""
    hosts: Mapping[str, str] = {}

    @property
    def schedulers(self) -> Mapping[str, str]:
        """The variables of a scheduler that the launching machine had."""
        variables = self.request.get("environ")
        return variables if isinstance(variables, dict) else {}


# -- a run without a controller ------------------------------------------------------------------------------


def saved_limit(run: RunDocument, name: str) -> float:
    """Return a time limit that a run was started with, in seconds; the default where run.json does not say."""
    seconds = run.spec.get(name)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        seconds = getattr(Limits(), name)
    return float(seconds)


class LeaseEnd(NamedTuple):
    """When the controller of a run ended, and by when the lease had ended its ranks (unix seconds)."""

    controller_t: float
    ranks_t: float


def silent_after(run: RunDocument) -> float:
    """Give the seconds after which a controller that writes no status.json is silent: three beats, and a little."""
    return 3 * beat_of(saved_limit(run, "lease")) + 1.0


def lease_end_of(run: RunDocument, status: StatusDocument) -> LeaseEnd:
    """Tell when a controller would have ended that wrote status.json last: it does once a beat."""
    lease = saved_limit(run, "lease")
    return LeaseEnd(status.t, status.t + beat_of(lease) + lease + saved_limit(run, "grace"))


# -- reading -------------------------------------------------------------------------------------------------


def suite_result(result: ResultDocument) -> SuiteResult:
    """Give a run's result as the result of a test."""
    if isinstance(result, SuiteResult):
        return result
    return SuiteResult(**vars(result))


def result_kind(document: Document) -> type[ResultDocument]:
    """Tell whether the fields of result.json are those of a run or of a test."""
    return SuiteResult if "ok" in document else ResultDocument


def result_record(document: Document) -> ResultDocument:
    """Make the result of a run, or of a test, of the fields of result.json."""
    return decode_parts(result_kind(document), document)
