"""Pace: compares the run with itself, and keeps what the nodes' machines do (pure).

Samples come from the agents (agent/usage.py), steps from what the ranks show. What they mean is said in
diagnose/slowdown.py.
"""

from __future__ import annotations

from datetime import datetime, timezone

from allranks.diagnose.devices import NOTHING, new_faults
from allranks.diagnose.slowdown import (
    PaceKeeper,
    Slowdown,
    changes,
    find_slowdown,
    has_recovered,
    recovery_words,
    slowdown_finding,
)
from allranks.protocol.orders import UsageOrder
from allranks.protocol.run_facts import PlainNote, Stamped
from allranks.protocol.samples import NodeUsage

from .roster import Roster
from .states import Action, Send, StepShown
from .stragglers import StragglerWatch

STARTING = 30.0  # seconds that ranks without a process group are given to start
EVERY = 10.0  # seconds between samples of a node
SAMPLES = 30  # of each node that are kept: five minutes
MOST_SAID = 10  # slowdowns in an attempt
PATIENCE = 15.0  # seconds for samples that cover the time after a change
SAME_TIME = 10.0  # seconds between a slowdown and a rank's becoming late that are one change


class PaceWatch:
    """The part of a running gang that notices that steps have become slower."""

    def __init__(self, roster: Roster, stragglers: StragglerWatch) -> None:
        self.roster = roster
        self.stragglers = stragglers
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self._paces = PaceKeeper()
        self._samples: dict[str, list[NodeUsage]] = {}
        self._asked: set[str] = set()
        self._slowdown: Slowdown | None = None
        self._said = 0
        self._since: float | None = None  # when ranks were started
        for node in self.roster.nodes.values():
            node.usage = node.usage_before = None

    def ask(self, now: float) -> list[Action]:
        """Have nodes with running ranks send samples: not while they start, which costs enough."""
        roster = self.roster
        if roster.testing or not roster.spec.limits.straggler_interval:
            return []
        if self._since is None:
            self._since = now
        has_started = now - self._since >= STARTING
        actions: list[Action] = []
        for node in roster.nodes.values():
            is_initialised = any(rank.initialised_t is not None for rank in node.ranks.values())
            if node.name not in self._asked and not node.gone and (is_initialised or has_started):
                self._asked.add(node.name)
                actions.append(Send(node.name, UsageOrder(EVERY)))
        return actions

    def on_used(self, stamped: Stamped[NodeUsage], now: float) -> list[Action]:
        """Keep a node's sample."""
        node = self.roster.nodes[stamped.node]
        before = NOTHING
        if node.usage is not None and node.usage.devices is not None:
            before = node.usage.devices
        node.usage = stamped.fact
        samples = self._samples.setdefault(stamped.node, [])
        samples.append(stamped.fact._replace(t=stamped.t))
        del samples[:-SAMPLES]
        node.usage_before = samples[0]
        if stamped.fact.devices is None:
            return []
        faults = new_faults(node.name, stamped.fact.devices, before)
        return [self.roster.add_finding(fault) for fault in faults]

    def on_step(self, stamped: Stamped[StepShown], now: float) -> list[Action]:
        """Note how far the run is; say once that it became slower, and once that it is as fast as before."""
        if self.roster.testing or not self.roster.spec.limits.straggler_interval:
            return []
        if not self._paces.note(stamped.t, stamped.fact.step):
            return []
        paces = self._paces.paces
        if self._slowdown is not None:
            if not has_recovered(self._slowdown, paces):
                return []
            words = recovery_words(self._slowdown, paces)
            self._slowdown = None
            self._paces.paces = paces[-SAMPLES:]
            return [self.roster.stamp(PlainNote(words))]
        slowdown = find_slowdown(paces)
        if slowdown is None or self._said >= MOST_SAID or stamped.t < slowdown.t + PATIENCE:
            return []
        self._slowdown = slowdown
        self._said += 1
        at = datetime.fromtimestamp(slowdown.t, timezone.utc).strftime("%H:%M:%S UTC")
        changed = changes(slowdown.t, self._samples)
        late = self.stragglers.late_since_about(slowdown.t, SAME_TIME)
        finding = slowdown_finding(slowdown, at, changed, late, self.roster.node_of_rank())
        return [self.roster.add_finding(finding)]
