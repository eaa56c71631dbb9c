"""What was observed of one attempt: exits, faults, lost nodes, findings, a hang (pure).

All times are unix seconds on the controller's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from allranks.findings import Finding, Hang, Logins, Where
from allranks.protocol.codec import decode_parts
from allranks.protocol.foreign import ErrorCall, ErrorDetails
from allranks.protocol.messages import ExitMessage, FaultMessage
from allranks.protocol.run_facts import (
    HangNoted,
    LauncherPaused,
    NodeLost,
    RankDeparted,
    RankLeaving,
    Stamped,
)

from .exceptions import Raised

CHANNEL = "channel"  # `check` of a finding that says why this machine could not open a channel again


@dataclass(frozen=True)
class RankEnd:
    """How the main process of a rank ended, and what it left.

    `t` is when it failed: the time in its error file where that is earlier than its reaping. `hides`: a script that
    ended with code 0, and its log ends as that of a program that failed.
    """

    node: str
    t: float
    fact: ExitMessage
    tail: str = ""  # end of its log
    hides: bool = False

    @property
    def rank(self) -> int:
        """Its rank."""
        return self.fact.rank

    @property
    def failed(self) -> bool:
        """Tell whether it ended with anything but code 0, or what it ran did."""
        return self.hides or self.fact.signal is not None or self.fact.code != 0

    @cached_property
    def details(self) -> ErrorDetails:
        """What the runner has written into its error file, where it died of an exception."""
        return decode_parts(ErrorDetails, (self.fact.error or {}).get("allranks"))

    @cached_property
    def raised(self) -> Raised | None:
        """The exception it died of, where it left an error file."""
        if not self.fact.error:
            return None
        return Raised.from_error_file(self.fact.error)


@dataclass(frozen=True)
class Incident:
    """Everything known about one attempt: `recorded.fold` makes it of the facts of a run."""

    attempt: int = 0
    world_size: int = 0
    ranks_by_node: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    exits: tuple[RankEnd, ...] = ()
    faults: tuple[Stamped[FaultMessage], ...] = ()
    lost: tuple[Stamped[NodeLost], ...] = ()
    findings: tuple[Finding, ...] = ()
    initialised: frozenset[int] = frozenset()
    init_entered: frozenset[int] = frozenset()
    departed: Mapping[int, Stamped[RankDeparted]] = field(default_factory=dict)  # ranks that have destroyed their group
    init_timeout_hit: bool = False
    hang: Hang | None = None
    noted: Stamped[HangNoted] | None = None  # the newest standstill with which the run went on
    stop_reason: str | None = None
    started_t: float = 0.0
    detected_t: float | None = None  # when the controller began to end it
    master: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)  # nodes, by addresses that they alone have
    pids: Mapping[int, int] = field(default_factory=dict)  # by rank, as far as they are known
    gpus: Mapping[int, int] = field(default_factory=dict)  # by rank
    command: tuple[str, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes, by node
    deepspeed: Mapping[str, int] = field(default_factory=dict)  # numbers of accelerate's configuration
    left: Mapping[int, Stamped[RankLeaving]] = field(default_factory=dict)  # ranks whose process outlived their program
    became: Mapping[int, str] = field(default_factory=dict)  # programs that ranks have become by exec
    pauses: tuple[Stamped[LauncherPaused], ...] = ()
    lease: float = 0.0  # seconds, 0 where it is not known
    logins: Logins = field(default_factory=Logins)  # how the nodes are reached from the launching machine
    is_joined: bool = False  # each node was started from outside, by a scheduler perhaps
    schedulers: Mapping[str, str] = field(default_factory=dict)  # of nodes that say: slurm, kubernetes or none
    jobs: Mapping[str, str] = field(default_factory=dict)  # of Slurm, or pods, by node
    withheld: tuple[str, ...] = ()  # variables that are set here and that ranks on other hosts did not get

    def node_of(self, rank: int) -> str:
        """Find the node that a rank is on; empty where it is not known."""
        for node, ranks in self.ranks_by_node.items():
            if rank in ranks:
                return node
        return next((e.node for e in self.exits if e.rank == rank), "")

    def complete(self, where: Where) -> Where:
        """Add the node, the process and the GPU of a place's rank, as far as they are known."""
        rank = where.rank
        if rank is None or where.role:  # another role's
            return where
        if where.node is None:
            nodes = (name for name, ranks in self.ranks_by_node.items() if rank in ranks)
            where = where._replace(node=next(nodes, None))
        ended = next((e.fact.pid for e in self.exits if e.rank == rank), None)
        pid = self.pids.get(rank, ended)
        gpu = self.gpus.get(rank)
        return where._replace(pid=where.pid or pid, gpu=gpu if where.gpu is None else where.gpu)

    def ranks_of(self, nodes: Iterable[str]) -> frozenset[int]:
        """Give the ranks of these nodes."""
        return frozenset(rank for node in nodes for rank in self.ranks_by_node.get(node, ()))

    @property
    def all_ranks(self) -> frozenset[int]:
        """Every rank of the plan."""
        planned = frozenset(r for ranks in self.ranks_by_node.values() for r in ranks)
        return planned or frozenset(range(self.world_size))

    @cached_property
    def calls(self) -> dict[int, tuple[ErrorCall, ...]]:
        """The newest collectives of the ranks that left an error file; the oldest first."""
        return {e.rank: e.details.calls for e in self.exits if e.details.calls}

    @property
    def agent_deaths(self) -> frozenset[str]:
        """The nodes whose agent died."""
        return frozenset(fault.node for fault in self.faults if fault.fact.id == "agent-death")

    def oom_kills(self, node: str) -> int:
        """Count the kernel's out-of-memory kills on a node, as far as its exits tell."""
        return max((e.fact.oom_kills for e in self.exits if e.node == node), default=0)
