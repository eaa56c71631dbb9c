"""What the gang knows of each node and rank (pure state, no decisions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from allranks.diagnose.devices import Devices
from allranks.diagnose.out_of_memory import DEEPSPEED
from allranks.findings import Finding, Where
from allranks.preflight.launcher_config import whole_number
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.messages import AddressProbe, ExitMessage, FactsMessage
from allranks.protocol.plan_facts import NodeFacts, gpu_count, outer_addresses, read_facts
from allranks.protocol.processes import RemainingProcess
from allranks.protocol.run_facts import NodeFactsKept, RankLeaving, Stamped
from allranks.protocol.samples import DeviceCounters, NodeUsage
from allranks.runs.documents import NodeStatus, RankStatus
from allranks.text import join_words, with_reason

from .clocks import NodeClock

SHORTEST_PAUSE = 2.0  # seconds between two tries to reach a node again
LONGEST_PAUSE = 15.0
LINGER_PATIENCE = 5.0  # seconds beyond the grace in which a program that failed may let go of its threads
REMARK_AFTER = 30.0  # seconds after which one that ended well is remarked upon
LINGER_REMEDY = "end those threads before the program ends, or start them with daemon=True"
STANDS_BY = "spare"  # the state of a spare that has been looked at and found fit


@dataclass
class Departure:
    """How far a rank is on its way out. `raised_t`: an uncaught exception was recorded; `ended_t`: the program has
    ended, and its process waits for `threads`, or has no main thread any more; `code` is what it will end with.
    `ended_at` is when that was heard, by the clock of the limits."""

    raised_t: float | None = None
    ended_t: float | None = None
    ended_at: float = 0.0
    code: int = 0
    threads: tuple[str, ...] = ()
    remarked: bool = False

    def hear(self, stamped: Stamped[ReportMessage], now: float) -> RankLeaving | None:
        """Take a report of the rank; return the fact that keeps it, where it is one of a departure."""
        report = stamped.fact
        if report.event not in ("raised", "leaving", "main-gone", "threads-ended"):
            return None
        has_ended = report.event in ("leaving", "main-gone")
        waits = has_ended or (report.event == "raised" and self.ended_t is not None)
        fact = RankLeaving(report.rank, report.event, self.code, self.threads, waits)
        if report.event == "raised":
            fact = fact._replace(code=1)
        elif report.event == "leaving":
            fact = fact._replace(code=report.code or 0, threads=report.threads)
        elif report.event == "threads-ended":
            fact = fact._replace(threads=())
        self.take(fact, stamped.t, now)
        return fact

    def take(self, fact: RankLeaving, t: float, at: float) -> None:
        """Take what happened at `t` (unix seconds), and `at` by the clock of the limits."""
        self.code = fact.code
        self.threads = fact.threads
        if fact.what == "raised":
            self.raised_t = t
        elif fact.waits:
            self.ended_t = t
            self.ended_at = at
        else:
            self.ended_t = None

    @property
    def failed(self) -> bool:
        """The program has failed, whatever its process still does."""
        return self.raised_t is not None or (self.ended_t is not None and self.code != 0)

    def is_overdue(self, now: float, grace: float) -> bool:
        """Tell whether the program has failed and only threads that it left have kept its process, for too long."""
        return self.failed and self.ended_t is not None and now - self.ended_at >= grace + LINGER_PATIENCE

    def is_remarkable(self, now: float) -> bool:
        """Tell whether the program has ended well and its process goes on for long."""
        waits = self.ended_t is not None and not self.failed and not self.remarked
        return waits and now - self.ended_at >= REMARK_AFTER


@dataclass
class RankState:
    """One rank of the present attempt."""

    rank: int
    local_rank: int
    state: str = "waiting"
    pid: int | None = None
    started_t: float | None = None  # unix seconds; not known of one that an agent alone remembers
    entered: bool = False
    never_joined: bool = False  # it said so at its end: torch was loaded, no process group made
    initialised_t: float | None = None
    exit: Stamped[ExitMessage] | None = None
    exit_at: float = 0.0  # when that was heard, by the clock of the limits
    departure: Departure = field(default_factory=Departure)
    lateness: float | None = None  # seconds, the median of the last look (gang/stragglers.py)

    @property
    def is_running(self) -> bool:
        """Its process runs, as far as is known."""
        return self.pid is not None and self.exit is None and self.state != "lost"

    def start(self, pid: int, t: float) -> None:
        """Have a process since `t` (unix seconds); it may have said more of itself before."""
        self.pid = pid
        self.started_t = t
        if self.state == "waiting":
            self.state = "started"

    def initialise(self, t: float) -> None:
        """Be through init_process_group since `t` (unix seconds)."""
        self.initialised_t = t
        if self.exit is None:
            self.state = "initialised"

    def take_exit(self, end: Stamped[ExitMessage], now: float) -> None:
        """Keep how it ended, as heard at `now` by the clock of the limits."""
        self.exit = end
        self.exit_at = now
        if end.fact.code == 0:
            self.state = "exited"
        elif end.fact.expected:
            self.state = "killed"
        else:
            self.state = "failed"


@dataclass
class NodeState:
    """One node: how far it is, what it said. `incarnation` counts the agents it has had before this one."""

    name: str
    index: int
    clock: NodeClock = field(default_factory=NodeClock)  # of the machine, beside ours
    state: str = "connecting"
    node_dir: str = ""
    hostname: str = ""
    address: str | None = None  # what the list had, where `name` is the host's own
    synced: bool = False  # the caller's tree is there, where it is shipped
    facts: JsonObject | None = None  # as the checks judge them
    deepspeed: dict[str, int] = field(default_factory=dict)  # numbers of accelerate's configuration
    plan_facts: NodeFacts = field(default_factory=NodeFacts)  # what the plan reads of them
    probes: tuple[AddressProbe, ...] | None = None
    ranks: dict[int, RankState] = field(default_factory=dict)
    owned: set[int] = field(default_factory=set)  # ranks that it has or had: it speaks for no others
    ended: bool = False
    drained: bool = False
    outputs: str | None = None  # where the program's files stay on the node
    left: tuple[RemainingProcess, ...] = ()
    incarnation: int = 0
    awaited_from: float | None = None  # it was lost or is missing, and is waited for since then
    refusal: str = ""  # why it could not be reached the last time
    usage: NodeUsage | None = None  # what its machine did last
    usage_before: NodeUsage | None = None  # some minutes ago
    preloads: bool = False  # its agent has been asked to import for the ranks

    @property
    def stands_by(self) -> bool:
        """Tell whether it is a spare that has been looked at and found fit."""
        return self.state == STANDS_BY

    @property
    def gone(self) -> bool:
        """Nothing more is to be expected from it."""
        return self.state in ("lost", "unreachable")

    @property
    def is_there(self) -> bool:
        """Its agent has said hello, and it has not been given up since."""
        return bool(self.node_dir) and not self.gone

    @property
    def is_away(self) -> bool:
        """It was lost and has not come back yet."""
        return self.awaited_from is not None and not self.node_dir

    def renewed(self, awaited_from: float | None, state: str = "connecting") -> NodeState:
        """Make the state of the same node with another agent; only its place in the list stays."""
        return NodeState(
            self.name,
            self.index,
            state=state,
            address=self.address,
            incarnation=self.incarnation + 1,
            awaited_from=awaited_from,
        )

    def next_try(self, now: float) -> float:
        """Return the seconds until it is reached again: the longer it is awaited, the more."""
        waited = now - (now if self.awaited_from is None else self.awaited_from)
        return min(max(SHORTEST_PAUSE, waited / 4), LONGEST_PAUSE)

    @property
    def devices(self) -> Devices:
        """What its GPUs and ports have counted."""
        samples = [usage.devices or DeviceCounters() for usage in (self.usage, self.usage_before) if usage is not None]
        return Devices(*samples)

    @property
    def memory(self) -> int:
        """Bytes; 0 where it is not known."""
        return self.plan_facts.mem.total or 0

    def begin_attempt(self) -> None:
        """Have no ranks until the plan gives it some."""
        self.ranks = {}
        self.ended = False
        self.drained = False

    def lose(self) -> None:
        """Give it up, with its ranks."""
        self.state = "lost"
        for rank in self.ranks.values():
            rank.state = "lost"

    def take_ranks(self, ranks: range) -> None:
        """Have these ranks from now on."""
        self.ranks = {rank: RankState(rank, local_rank) for local_rank, rank in enumerate(ranks)}
        self.owned.update(ranks)

    def take_answer(self, message: FactsMessage) -> NodeFactsKept:
        """Keep what a look at the node has given, with how far its clock is from ours."""
        facts = dict(message.facts)
        if self.clock.delay is not None:
            facts["clock"] = self.clock.facts()
        return self.take_facts(facts)

    def take_facts(self, facts: JsonObject) -> NodeFactsKept:
        """Keep what was found out about the node; the event that keeps it for whoever judges the run again."""
        self.facts = facts
        self.plan_facts = read_facts(facts)
        addresses = tuple(outer_addresses(self.plan_facts))
        self.deepspeed = of_deepspeed(facts)
        started_by = self.plan_facts.scheduler
        gpus = gpu_count(self.plan_facts)
        return NodeFactsKept(addresses, self.memory, gpus, self.deepspeed, started_by.name, started_by.job)

    def status(self, progress: Mapping[int, RankStatus], warnings: Mapping[str, tuple[str, ...]]) -> NodeStatus:
        """Return the node's part of status.json; `progress` has the figures of the ranks that have shown any.

        `warnings`: what ails nodes, by their names.
        """
        ranks = tuple(_rank_status(rank, progress.get(rank.rank, _NOTHING_SEEN)) for rank in self.ranks.values())
        ailments = warnings.get(self.name, ())
        return NodeStatus(self.name, self.index, self.address, self.state, ranks, self.usage, warnings=ailments)


_NOTHING_SEEN = RankStatus()


def _rank_status(rank: RankState, seen: RankStatus) -> RankStatus:
    """Join what is known of a rank; `dataclasses.replace` takes three times as long, and a run may have 32,768."""
    known = {"rank": rank.rank, "local_rank": rank.local_rank, "state": rank.state, "pid": rank.pid}
    return RankStatus(**{**vars(seen), **known, "lateness_s": rank.lateness})


def of_deepspeed(facts: JsonObject) -> dict[str, int]:
    """Read the numbers below `deepspeed_config:` that memory goes by, where accelerate reads them.

    accelerate/commands/launch.py copies them to its options where distributed_type is DEEPSPEED.
    """
    table = facts.get("accelerate_config")
    if not isinstance(table, dict) or table.get("distributed_type") != "DEEPSPEED":
        return {}
    numbers = {name: whole_number(str(table.get(f"deepspeed_config.{name}", ""))) for name in DEEPSPEED}
    return {name: number for name, number in numbers.items() if number is not None and number >= 0}


def linger_remark(departures: Mapping[int, Departure], nodes: Mapping[int, str]) -> Finding:
    """Ranks whose programs have ended well, by rank with their nodes: their processes go on."""
    ranks = sorted(departures)
    who = join_words([f"rank {rank} on {nodes[rank]}" for rank in ranks], limit=5)
    threads = join_words(list(dict.fromkeys(name for rank in ranks for name in departures[rank].threads))[:4])
    reached = "has reached the end of its program, but its process waits"
    if len(ranks) > 1:
        reached = "have reached the end of their program, but their processes wait"
    message = with_reason(f"{who} {reached} for threads that still run", threads)
    where = Where(node=nodes[ranks[0]], rank=ranks[0]) if len(ranks) == 1 else Where()
    return Finding("threads-left", "warn", message, LINGER_REMEDY, where)
