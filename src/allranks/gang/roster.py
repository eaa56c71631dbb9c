"""Roster: everything a gang knows of its nodes, ranks and failures, without deciding anything. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from allranks.cluster import Cluster
from allranks.diagnose.incident import Pause
from allranks.findings import Finding
from allranks.plan.ranks import Plan
from allranks.settings import RunSpec

from .members import NodeState, RankState
from .places import Setting
from .signals import SignalWays
from .states import Exit, Fault, Lost, Note, State

LAMING = ("guard-death", "watcher-lost", "lease-over")  # faults after which nothing would watch over ranks there
GATE_REPEATS = 3  # for EADDRINUSE at rank 0 on a port we chose ourselves


class Roster:
    """State and simple questions; `Gang` adds what to do about events."""

    def __init__(self, spec: RunSpec, cluster: Cluster, setting: Setting, now: float, t: float) -> None:
        """`now` and `t` as in `Gang.handle`. Times by the former clock are called `…_at`, by the latter `…_t`."""
        self.spec, self.cluster, self.setting = spec, cluster, setting
        self.state = State.GATHERING
        self.nodes = {n.name: NodeState(n.name, n.index) for n in cluster.nodes}  # in the order of their ranks
        self.spares = {n.name: NodeState(n.name, n.index) for n in cluster.spares}
        self.retired: dict[str, NodeState] = {}  # others have taken their places
        self.plan: Plan | None = None
        self.attempt = 0
        self.started, self.attempt_started, self._t = t, t, t
        self.began_at, self.attempt_at, self._sign_at = now, now, now
        self.master_addr, self.master_port = "", 0
        self.findings: list[Finding] = []
        self.exits: list[Exit] = []
        self.faults: list[Fault] = []
        self.lost: list[Lost] = []
        self.pauses: list[Pause] = []
        self.stop_reason: str | None = None
        self._lost_at: list[float] = []
        self._stacks_at: float | None = None
        self.init_timeout_hit = self.refused_by_check = False
        self.initialised_t: float | None = None
        self.failed_t: float | None = None
        self.failed_at: float | None = None
        self._gate_at = now
        self._resume_at = 0.0  # a further attempt begins then
        self._port_tries = 0
        self._end_deadline = 0.0
        self._gather_deadline = float("inf")
        self._end_grace = 0.0
        self._interfaces: dict[str, dict[str, str]] = {}
        self._asked: dict[str, Mapping[str, Any]] = {}  # the last request to each node: a broken channel loses it
        self._repeats = 0
        self._outputs_told = False
        self._signal_ways = SignalWays()
        self._signals: list[dict[str, Any]] = []  # those passed on to the ranks of the present attempt
        self._signals_before = 0  # in this attempt, by the controller before us
        self._adopted = False
        self.testing = bool(spec.test)  # the present attempt runs the collective tests

    def adopt(self, attempt: int, ranks: Mapping[str, Mapping[int, str]], master: tuple[str, int]) -> None:
        """Takes over a run that another controller started: its ranks run, its guards will say hello.

        `ranks` are the last known states by node and rank.
        """
        self.state, self.attempt, self._adopted = State.RUNNING, attempt, True
        self.master_addr, self.master_port = master
        for name, states in ranks.items():
            node = self.nodes[name]
            node.state, node.node_dir = "silent", "?"
            node.ranks = {r: RankState(r, r - min(states), state) for r, state in states.items()}
            for rank in node.ranks.values():
                rank.initialised_t = 0.0 if rank.state == "initialised" else None

    def rename(self, old: str, new: str) -> None:
        """A node that the list knows by address gets its own name, in every output from now on."""
        self.nodes, self.spares = _renamed(self.nodes, old, new), _renamed(self.spares, old, new)
        nodes, spares = (
            tuple(dataclasses.replace(n, name=new) if n.name == old else n for n in group)
            for group in (self.cluster.nodes, self.cluster.spares)
        )
        self.cluster = Cluster(nodes, self.cluster.source, spares)

    @property
    def everyone(self) -> dict[str, NodeState]:
        """The nodes with those that stand by and those that were replaced."""
        return {**self.retired, **self.nodes, **self.spares}

    def record(self, fault: Fault) -> Note:
        """A fault and its event."""
        self.faults.append(fault)
        return Note("fault", {"node": fault.node, "id": fault.id, "message": fault.message, "t": fault.t})

    @property
    def master(self) -> NodeState:
        """The first node."""
        return self.nodes[self.cluster.master.name]

    def ranks(self) -> list[RankState]:
        """All ranks of the present attempt, in order."""
        return [r for n in self.nodes.values() for r in n.ranks.values()]

    def processes(self) -> list[RankState]:
        """Ranks that have a process of their own: with a launcher, the first of each node."""
        if self.spec.launcher == "direct" or self.testing:
            return self.ranks()
        return [next(iter(n.ranks.values())) for n in self.nodes.values()]

    def layout(self) -> dict[int, tuple[str, int]]:
        """Node and local rank of every rank that the program has, behind a launcher too."""
        if self.plan is None:  # adopted from another controller
            return {r.rank: (n.name, r.local_rank) for n in self.nodes.values() for r in n.ranks.values()}
        planned = [(n.first_rank, n.nproc, n.node.name) for n in self.plan.nodes]
        return {first + at: (name, at) for first, count, name in planned for at in range(count)}

    @property
    def program_failed(self) -> bool:
        """A rank has failed by itself: it ended so, or its program did and its process went on."""
        return any((e.code != 0 and not e.expected) or self.own_code(e) for e in self.exits)

    def own_code(self, event: Exit) -> int | None:
        """What a rank's process would have ended with that allranks ended after its program had; else None."""
        departures = (r.departure for r in self.ranks() if r.rank == event.rank)
        return next((d.code for d in departures if event.expected and d.ended_t is not None), None)

    @property
    def last_sign(self) -> float:
        """When ranks last showed that they come on: start of the attempt, through init_process_group, an end. By the
        clock of the limits."""
        return self._sign_at

    def attempt_seconds(self, now: float) -> float:
        """How long the attempt has taken, to its first failure where it has one."""
        return round((self.failed_at if self.failed_at is not None else now) - self.attempt_at, 1)

    @property
    def port_was_taken(self) -> bool:
        """True where rank 0 lost the race for a port that we chose: the gate is repeated, it costs no attempt."""
        zero = [e for e in self.exits if e.rank == 0 and not e.expected and e.error]
        text = str((zero[0].error or {}).get("message", "")) if zero else ""
        taken = "EADDRINUSE" in text or "address already in use" in text.lower()
        wanted = self.spec.master_port == 0 and self.stop_reason is None and self.can_retry
        return taken and wanted and self._port_tries < GATE_REPEATS

    @property
    def lame(self) -> tuple[str, ...]:
        """Nodes on which no rank can be started as they are: lost, not reached, or without guard or watcher."""
        gone = [n.name for n in self.nodes.values() if n.gone]
        faulty = [f.node for f in self.faults if f.id in LAMING]
        return tuple(dict.fromkeys([*gone, *(name for name in faulty if name in self.nodes)]))

    @property
    def can_retry(self) -> bool:
        """Whether the same nodes can go on as they are."""
        return self.plan is not None and not self.lame


def _renamed(nodes: Mapping[str, NodeState], old: str, new: str) -> dict[str, NodeState]:
    for name, node in nodes.items():
        if name == old:
            node.name, node.address = new, old
    return {node.name: node for node in nodes.values()}
