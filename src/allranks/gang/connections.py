"""Connections: what an agent that was away says when it is heard again, and nodes that are heard no more. Pure.

These events come in every state of the gang.
"""

from __future__ import annotations

from collections.abc import Iterable

from allranks.findings import Finding, Where
from allranks.protocol.messages import (
    LOW_SPACE,
    AttemptSummary,
    FaultMessage,
    HelloMessage,
    RankSummary,
    RemarkMessage,
    StartedMessage,
)
from allranks.protocol.orders import (
    EndOrder,
    ListenOrder,
    Order,
    ProbeOrder,
    SetupOrder,
    ShipOrder,
    StartOrder,
)
from allranks.protocol.run_facts import NodeBack, NodeLost, NodeReady, NodeSilent, Stamped

from .ending import Ending
from .gathering import Gathering
from .members import NodeState, RankState
from .passed_signals import UserSignals
from .roster import Roster
from .running import Running
from .states import Action, Send, State

# What to do about the remarks of agents, by their ids.
REMEDIES = {LOW_SPACE: "free some. hint: ssh {node} 'du -xh -d1 /tmp'"}
REPEATED = (ShipOrder, SetupOrder, ListenOrder, ProbeOrder, StartOrder)  # where the channel breaks before an answer


class Connections:
    """The part of the gang that is about the ways to its nodes."""

    def __init__(
        self, roster: Roster, ending: Ending, gathering: Gathering, running: Running, signals: UserSignals
    ) -> None:
        self.roster = roster
        self.ending = ending
        self.gathering = gathering
        self.running = running
        self.signals = signals
        self._last_requests: dict[str, Order] = {}  # by node: a broken channel loses the last one

    def remember(self, actions: Iterable[Action]) -> None:
        """Keep the last request to each node that it may get again."""
        for action in actions:
            if isinstance(action, Send) and isinstance(action.order, REPEATED):
                self._last_requests[action.node] = action.order

    def forget(self, names: Iterable[str]) -> None:
        """Forget the requests to nodes that get another agent."""
        for name in names:
            self._last_requests.pop(name, None)

    # -- events ------------------------------------------------------------------------------------

    def on_hello(self, stamped: Stamped[HelloMessage], now: float) -> list[Action]:
        """First word of an agent, or the word of one that was away."""
        roster = self.roster
        node = roster.nodes[stamped.node]
        is_first = not node.node_dir
        node.node_dir = stamped.fact.node_dir
        node.hostname = stamped.fact.hostname
        if stamped.fact.dead:
            return self._agent_is_dead(stamped, now)
        if not is_first:
            return self._catch_up(node, stamped, now)
        if roster.state is State.GATHERING:
            return self.gathering.on_first_hello(node, stamped, now)
        node.state = "ready"
        return [roster.stamp(NodeReady(stamped.fact.hostname), node.name), *self._resend(node)]

    def on_fault(self, stamped: Stamped[FaultMessage], now: float) -> list[Action]:
        """End the gang because of an agent's own trouble."""
        return [self.roster.add_fault(stamped), *self.ending.fail(now)]

    def on_remark(self, stamped: Stamped[RemarkMessage], now: float) -> list[Action]:
        """Warn of what is amiss on a node; of virtual nodes once, for they are one machine."""
        roster = self.roster
        node = stamped.node
        remark = stamped.fact
        if roster.spec.target.local and any(f.id == remark.id for f in roster.findings):
            return []
        remedy = REMEDIES.get(remark.id, "").replace("{node}", node)
        finding = Finding(remark.id, "warn", f"{node}: {remark.message}", remedy, Where(node=node), lasts=True)
        return [*roster.add_lasting(finding)]

    def on_silent(self, stamped: Stamped[NodeSilent], now: float) -> list[Action]:
        """Several beats are missing."""
        node = self.roster.nodes[stamped.node]
        if node.gone:
            return []
        node.state = "silent"
        return [stamped]

    def on_back(self, stamped: Stamped[NodeBack], now: float) -> list[Action]:
        """Take a node back that is heard again in time."""
        node = self.roster.nodes[stamped.node]
        if node.state != "silent":
            return []
        node.state = "ready"
        if self.roster.state in (State.RUNNING, State.ENDING):
            node.state = "running"
        return [stamped]

    def on_lost(self, stamped: Stamped[NodeLost], now: float) -> list[Action]:
        """Give up a node whose lease is over: its agent, if it lives, ends its ranks now, and so do all others."""
        self.roster.nodes[stamped.node].lose()
        self.roster.lost.append(stamped)
        self.ending.fence(now)
        return [stamped, *self.ending.fail(now)]

    # -- an agent that was away ------------------------------------------------------------------------

    def _agent_is_dead(self, stamped: Stamped[HelloMessage], now: float) -> list[Action]:
        roster = self.roster
        node = roster.nodes[stamped.node]
        actions = self._catch_up(node, stamped, now)
        kind = "lease-over" if "lease was over" in stamped.fact.how else "agent-death"
        if any((fault.node, fault.fact.id) == (node.name, kind) for fault in roster.faults):
            return actions
        return actions + self._fail_by(stamped, kind, stamped.fact.how, now)

    def _fail_by(self, hello: Stamped[HelloMessage], kind: str, what: str, now: float) -> list[Action]:
        """End the gang because of what the hello of an agent tells."""
        return self.on_fault(self.roster.stamp(FaultMessage(kind, what), hello.node, hello.t), now)

    def _catch_up(self, node: NodeState, stamped: Stamped[HelloMessage], now: float) -> list[Action]:
        """Act on what happened on a node while it was not heard."""
        roster = self.roster
        summary = stamped.fact.attempt
        actions: list[Action] = []
        if node.state == "silent":
            actions += self.on_back(roster.stamp(NodeBack(), node.name), now)
        if roster.is_adopted and stamped.fact.dead and summary is not None:
            roster.adopt_owned(node, summary.ranks)
        if roster.is_adopted and not stamped.fact.dead and roster.state is State.RUNNING:
            actions += self._adopt_ranks(node, stamped, now)
        if summary is None or summary.attempt != roster.attempt:
            return actions + self._resend(node, stamped.fact.dead)
        for world in summary.worlds:  # before the exits, which are judged by them
            self.running.groups.on_world(roster.stamp(world, node.name, stamped.t), now)
        for number, report in summary.ranks.items():
            rank = node.ranks.get(number)
            if rank is not None:
                actions += self._catch_up_rank(node, rank, report, stamped.t, now)
        # Another controller has ended a node whose ranks had: it was done, and this one takes over.
        is_done = all(rank.exit is not None and rank.exit.fact.code == 0 for rank in node.ranks.values())
        if summary.ending and roster.state is State.RUNNING and not stamped.fact.dead and not is_done:
            actions += self._fail_by(stamped, "ended-alone", "ended its ranks without being asked", now)
        actions += self.signals.missed(node, summary.signals)
        actions += self.signals.saving.missed(node.name)
        return actions + self._resend(node, only_end=True)

    def _catch_up_rank(
        self, node: NodeState, rank: RankState, report: RankSummary, t: float, now: float
    ) -> list[Action]:
        actions: list[Action] = []
        if rank.pid is None and self.roster.is_adopted and rank.state != "waiting":
            rank.pid = report.pid  # the controller before this one has written its event
        elif rank.pid is None:
            started = StartedMessage(rank.rank, report.pid, self.roster.attempt)
            actions += self.running.on_started(self.roster.stamp(started, node.name, t), now)
        if report.exit is not None and rank.exit is None:
            exited = node.clock.stamp(report.exit, node.name, self.roster.attempt, t)
            actions += self.running.on_exit(exited, now)
        return actions

    def _adopt_ranks(self, node: NodeState, stamped: Stamped[HelloMessage], now: float) -> list[Action]:
        """Add what the last controller had not written down: a later attempt, ranks, or no start at all."""
        roster = self.roster
        summary = stamped.fact.attempt or AttemptSummary(0)
        roster.attempt = max(roster.attempt, summary.attempt)
        numbers = roster.adopt_owned(node, (*summary.ranks, *summary.awaited))
        for rank in numbers:
            node.ranks.setdefault(rank, RankState(rank, rank - numbers[0]))
        if numbers and summary.attempt == roster.attempt:
            return []
        cut = "had not started its ranks when the controller of the run was lost"
        return self._fail_by(stamped, "start-cut", cut, now)

    def _resend(self, node: NodeState, only_end: bool = False) -> list[Action]:
        state = self.roster.state
        if state is State.ENDING and not (node.ended and node.drained):
            return [Send(node.name, EndOrder(self.ending.grace, "again"))]
        last = self._last_requests.get(node.name)
        unanswered: dict[type[Order], bool] = {
            ShipOrder: state is State.GATHERING and not node.synced,
            SetupOrder: state is State.GATHERING and node.facts is None,
            ListenOrder: state is State.LISTENING,
            ProbeOrder: state is State.PROVING and node.probes is None,
            StartOrder: state is State.RUNNING,
        }
        if only_end or last is None or not unanswered.get(type(last)):
            return []
        return [Send(node.name, last)]
