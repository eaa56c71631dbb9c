"""The frozen evidence of one attempt, and its JSON form (pure).

All times are unix seconds on the controller's clock. `Incident.from_json` reads a saved incident, so
that a verdict can be given again without the run; absent parts take their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from allranks.findings import Finding, Where

from .exceptions import Raised
from .hangs.attribute import Hang

if TYPE_CHECKING:  # the signatures are not loaded where a run starts
    from .logs.evidence import Evidence

CHANNEL = "channel"  # `check` of a finding that says why this machine could not open a channel again


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
    error: Mapping[str, Any] | None = None
    tail: str = ""
    pid: int | None = None
    head: str = ""
    metrics: Mapping[str, Any] | None = None

    @property
    def failed(self) -> bool:
        """Anything but code 0."""
        return self.signal is not None or self.code != 0

    @property
    def raised(self) -> Raised | None:
        """The exception it died of, where it left an error file."""
        return Raised.from_error_file(self.error) if self.error else None


@dataclass(frozen=True)
class Fault:
    """A guard's own trouble: start-failed, watcher-lost, guard-death, lease-over, node-dir, protocol, boot, …"""

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
    reason: str = ""


@dataclass(frozen=True)
class Pause:
    """The launching machine's controller did not run for `seconds`, until `t`: it slept, or was stopped."""

    t: float
    seconds: float
    slept: bool


@dataclass(frozen=True)
class Left:
    """A rank whose program had ended when its process went on: at `t`, to end with `code`, waiting for `threads`."""

    t: float
    code: int
    threads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Incident:
    """Everything known about one attempt.

    `addresses`: the node of an address that only one node has; `departed`: ranks that have called
    destroy_process_group, and when; `detected_t` is when the controller began to end it; `memory` is what each node
    has, in bytes; `pids` and `gpus` are of ranks, where they are known; `left` are ranks whose process outlived their
    program, `became` the programs that ranks have become by exec; `lease` is in seconds, 0 where it is not known;
    `logs` is what its logs tell, where they were read.
    """

    attempt: int
    world_size: int
    ranks_by_node: Mapping[str, tuple[int, ...]]
    exits: tuple[ExitRecord, ...] = ()
    faults: tuple[Fault, ...] = ()
    lost: tuple[LostNode, ...] = ()
    findings: tuple[Finding, ...] = ()
    initialised: frozenset[int] = frozenset()
    init_entered: frozenset[int] = frozenset()
    departed: Mapping[int, float] = field(default_factory=dict)
    init_timeout_hit: bool = False
    hang: Hang | None = None
    stop_reason: str | None = None
    started_t: float = 0.0
    detected_t: float | None = None
    master: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    gpus: Mapping[int, int] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[int, Left] = field(default_factory=dict)
    became: Mapping[int, str] = field(default_factory=dict)
    pauses: tuple[Pause, ...] = ()
    lease: float = 0.0
    logs: Evidence | None = None

    def node_of(self, rank: int) -> str:
        """The node a rank lies on; empty where it is not known."""
        for node, ranks in self.ranks_by_node.items():
            if rank in ranks:
                return node
        return next((e.node for e in self.exits if e.rank == rank), "")

    def complete(self, where: Where) -> Where:
        """A place with the process and the GPU of its rank, as far as they are known."""
        if where.rank is None:
            return where
        ended = next((e.pid for e in self.exits if e.rank == where.rank), None)
        pid, gpu = self.pids.get(where.rank, ended), self.gpus.get(where.rank)
        return replace(where, pid=where.pid or pid, gpu=gpu if where.gpu is None else where.gpu)

    @property
    def all_ranks(self) -> frozenset[int]:
        """Every rank of the plan."""
        planned = frozenset(r for ranks in self.ranks_by_node.values() for r in ranks)
        return planned or frozenset(range(self.world_size))

    def oom_kills(self, node: str) -> int:
        """The kernel's out-of-memory kills on a node, as far as its exits tell."""
        return max((e.oom_kills for e in self.exits if e.node == node), default=0)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Incident:
        """A saved incident; unknown names are an error, absent ones take their defaults."""
        given = dict(data)
        given["ranks_by_node"] = {n: tuple(r) for n, r in given.get("ranks_by_node", {}).items()}
        given["exits"] = tuple(ExitRecord(**e) for e in given.get("exits", ()))
        given["faults"] = tuple(Fault(**f) for f in given.get("faults", ()))
        given["lost"] = tuple(LostNode(**n) for n in given.get("lost", ()))
        given["findings"] = tuple(Finding.from_json(f) for f in given.get("findings", ()))
        given["departed"] = {int(rank): t for rank, t in given.get("departed", {}).items()}
        if given.get("hang"):
            given["hang"] = Hang.from_json(given["hang"])
        for name in ("pids", "gpus"):
            given[name] = {int(rank): int(number) for rank, number in (given.get(name) or {}).items()}
        given["left"] = {
            int(rank): Left(e["t"], e["code"], tuple(e["threads"])) for rank, e in given.get("left", {}).items()
        }
        given["became"] = {int(rank): name for rank, name in given.get("became", {}).items()}
        given["pauses"] = tuple(Pause(**p) for p in given.get("pauses", ()))
        given["command"] = tuple(given.get("command", ()))
        for name in ("initialised", "init_entered"):
            given[name] = frozenset(given.get(name, ()))
        return cls(**{"attempt": 0, **given})
