"""What was observed of one attempt: exits, faults, lost nodes, findings, a hang (pure).

All times are unix seconds on the controller's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from allranks.findings import Finding, Hang, Where
from allranks.protocol.codec import decode_parts
from allranks.protocol.foreign import ErrorCall, ErrorDetails
from allranks.protocol.jsontext import Json

from .exceptions import Raised

CHANNEL = "channel"  # `check` of a finding that says why this machine could not open a channel again


def beat_of(lease: float) -> float:
    """Return the seconds between two signs of life of the controller; three that are missing renew a channel."""
    return max(0.5, min(5.0, lease / 6))


@dataclass(frozen=True)
class ExitRecord:
    """How the main process of a rank ended.

    `t` is when it failed: the time in its error file where that is earlier than its reaping. `expected`:
    it ended after allranks had begun to end it. `oom_kills` counts the kernel's out-of-memory kills on
    its node during the attempt; `head` and `tail` are the ends of its log, `metrics` is the last row of its metrics.
    """

    rank: int
    node: str
    code: int | None
    signal: int | None
    t: float
    expected: bool
    attempt: int = 0
    oom_kills: int = 0
    error: Mapping[str, Json] | None = None
    tail: str = ""
    pid: int | None = None
    head: str = ""
    metrics: Mapping[str, Json] | None = None

    @property
    def failed(self) -> bool:
        """Tell whether it ended with anything but code 0."""
        return self.signal is not None or self.code != 0

    @cached_property
    def calls(self) -> tuple[ErrorCall, ...]:
        """Its newest collectives, where it died of an exception; the oldest first."""
        return decode_parts(ErrorDetails, (self.error or {}).get("allranks")).calls

    @cached_property
    def raised(self) -> Raised | None:
        """The exception it died of, where it left an error file."""
        if not self.error:
            return None
        return Raised.from_error_file(self.error)


@dataclass(frozen=True)
class AgentFault:
    """An agent's own trouble: start-failed, supervisor-lost, agent-death, lease-over, node-dir, protocol, boot, …"""

    node: str
    id: str
    message: str
    t: float


@dataclass(frozen=True)
class LostNode:
    """A node that was not heard for the whole lease; given up at `t`."""

    node: str
    t: float
    last_heard: float


@dataclass(frozen=True)
class Pause:
    """The controller did not run for `seconds`, until `t`: its machine slept, it was stopped, it had `ended` or it
    `waited` (see LauncherPaused)."""

    t: float
    seconds: float
    slept: bool
    ended: bool = False
    waited: str = ""


@dataclass(frozen=True)
class Left:
    """A rank whose program had ended when its process went on: at `t`, to end with `code`, waiting for `threads`."""

    t: float
    code: int
    threads: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotedHang:
    """A standstill at `t`, with which the run went on: nothing had moved for `quiet` seconds."""

    t: float
    quiet: float
    hang: Hang


@dataclass(frozen=True)
class Incident:
    """Everything known about one attempt.

    `addresses`: the node of an address that only one node has; `departed`: ranks that have called
    destroy_process_group, and when, `departed_at` where in the program; `detected_t` is when the controller began to
    end it; `memory` is what each node has, in bytes; `pids` and `gpus` are of ranks, where they are known; `left` are
    ranks whose process outlived their program, `became` the programs that ranks have become by exec; `lease` is in
    seconds, 0 where it is not known; `noted` is the newest standstill with which the run went on. `local_nodes` are
    nodes that are the launching machine. `deepspeed` are numbers of accelerate's configuration. `is_slurm`: a Slurm job
    has the nodes; `is_joined`: each was started from outside, by a scheduler perhaps.
    """

    attempt: int = 0
    world_size: int = 0
    ranks_by_node: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    exits: tuple[ExitRecord, ...] = ()
    faults: tuple[AgentFault, ...] = ()
    lost: tuple[LostNode, ...] = ()
    findings: tuple[Finding, ...] = ()
    initialised: frozenset[int] = frozenset()
    init_entered: frozenset[int] = frozenset()
    departed: Mapping[int, float] = field(default_factory=dict)
    departed_at: Mapping[int, str] = field(default_factory=dict)
    init_timeout_hit: bool = False
    hang: Hang | None = None
    noted: NotedHang | None = None
    stop_reason: str | None = None
    started_t: float = 0.0
    detected_t: float | None = None
    master: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    gpus: Mapping[int, int] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    deepspeed: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[int, Left] = field(default_factory=dict)
    became: Mapping[int, str] = field(default_factory=dict)
    pauses: tuple[Pause, ...] = ()
    lease: float = 0.0
    local_nodes: frozenset[str] = frozenset()
    is_slurm: bool = False
    is_joined: bool = False
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
        if rank is None:
            return where
        if where.node is None:
            nodes = (name for name, ranks in self.ranks_by_node.items() if rank in ranks)
            where = where._replace(node=next(nodes, None))
        ended = next((e.pid for e in self.exits if e.rank == rank), None)
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
        """The newest collectives of the ranks that left an error file."""
        return {e.rank: e.calls for e in self.exits if e.calls}

    @property
    def agent_deaths(self) -> frozenset[str]:
        """The nodes whose agent died."""
        return frozenset(fault.node for fault in self.faults if fault.id == "agent-death")

    def oom_kills(self, node: str) -> int:
        """Count the kernel's out-of-memory kills on a node, as far as its exits tell."""
        return max((e.oom_kills for e in self.exits if e.node == node), default=0)
