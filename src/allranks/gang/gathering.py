"""Gathering: nodes say hello, are sent the tree, are looked at and judged, before the rendezvous check. Pure."""

from __future__ import annotations

from allranks.findings import Finding, Where
from allranks.plan.plan import make_plan
from allranks.preflight.checks.look import failed_look
from allranks.protocol.messages import FactsMessage, HelloMessage, ShippedMessage
from allranks.protocol.run_facts import NodeAwaited, NodeReady, NodesChecked, Stamped, TreeArrived
from allranks.text import count_of

from .changing_world import ChangingWorld
from .ending import Ending
from .members import NodeState
from .rendezvous import RendezvousCheck
from .roster import Roster
from .spares import HotSpares, shipping_failure
from .states import Action, NodeUnreachable, Reach, State, Tick

GATHER_PATIENCE = 3.0  # seconds given to the other nodes once one could not be reached


class Gathering:
    """The first phase: from the first word of an agent to the plan."""

    def __init__(
        self,
        roster: Roster,
        ending: Ending,
        spares: HotSpares,
        world: ChangingWorld,
        rendezvous: RendezvousCheck,
    ) -> None:
        self.roster = roster
        self.ending = ending
        self.spares = spares
        self.world = world
        self.rendezvous = rendezvous
        self._deadline = float("inf")

    def begin_attempt(self, now: float, is_paused: bool) -> list[Action]:
        """Begin a further attempt: what the nodes said still holds, and new ones are looked at."""
        roster = self.roster
        if roster.has_all_facts and roster.plan is not None and not is_paused:
            return self.rendezvous.begin(now)
        roster.state = State.GATHERING
        self._deadline = float("inf")
        actions: list[Action] = []
        for node in roster.nodes.values():
            node.begin_attempt()
            if node.node_dir:  # what it answered while the start was given up was not heard
                node.state = "ready"
                if node.facts is None:
                    actions.append(roster.first_order(node))
        if roster.has_all_facts and not is_paused:
            actions += self._judge(now)
        return actions

    def on_first_hello(self, node: NodeState, stamped: Stamped[HelloMessage], now: float) -> list[Action]:
        """First word of an agent."""
        roster = self.roster
        node.state = "ready"
        ready = roster.stamp(NodeReady(stamped.fact.hostname), node.name)
        if roster.has_unreachable:
            return [ready, *self._check(now)]
        return [ready, roster.first_order(node)]

    # -- events ------------------------------------------------------------------------------------

    def on_shipped(self, stamped: Stamped[ShippedMessage], now: float) -> list[Action]:
        """Look at a node that has the tree as it was sent."""
        roster = self.roster
        node = roster.nodes[stamped.node]
        if roster.context.tree is None or node.synced:
            return []
        failure = shipping_failure(roster.context.tree, stamped)
        if failure is not None:
            return self.ending.refuse([failure], now)
        node.synced = True
        actions: list[Action] = [roster.stamp(TreeArrived(stamped.fact.path, stamped.fact.files), node.name)]
        if not roster.has_unreachable:
            actions.append(roster.first_order(node))
        return actions

    def on_facts(self, stamped: Stamped[FactsMessage], now: float) -> list[Action]:
        """Once every node has been looked at: judge, then begin the rendezvous check."""
        roster = self.roster
        node = roster.nodes[stamped.node]
        actions: list[Action] = [roster.stamp(node.take_answer(stamped.fact), node.name)]
        if stamped.fact.error:
            roster.refused_by_check = True
            return actions + self._failed_on_a_node(failed_look([node.name], stamped.fact.error), now)
        if roster.refused_by_check:
            return actions + self._check(now)
        if not roster.has_all_facts:
            return actions
        actions += roster.share_checks()
        if now < roster.resume_at:
            return actions
        return actions + self._judge(now)

    def on_unreachable(self, stamped: Stamped[NodeUnreachable], now: float) -> list[Action]:
        """End the start for all, unless the node was lost and may come back: the others are looked at no further."""
        node = self.roster.nodes[stamped.node]
        again = self._await(node, stamped, now)
        if again:
            return again
        node.state = "unreachable"
        self.roster.failed_to_reach = True
        return self._failed_on_a_node(stamped.fact.finding, now)

    def on_tick(self, stamped: Stamped[Tick], now: float) -> list[Action]:
        """Time limits before the rendezvous check."""
        if now >= self._deadline:
            return self._check(now)
        if 0 < self.roster.resume_at <= now:
            self.roster.resume_at = 0.0
            return self._judge(now) if self.roster.has_all_facts else []
        if any(self._time_left(n, now) > 0 for n in self.roster.nodes.values()):
            self.roster.start_at = now  # the time for the start counts after that for a lost node
            return []
        return self._go_on_without(now) or self.ending.on_tick_of_start(stamped, now)

    # -- decisions -----------------------------------------------------------------------------------

    def _go_on_without(self, now: float) -> list[Action]:
        """Start without the nodes that did not come in time, where that is allowed and enough are there."""
        roster = self.roster
        missing = [node.name for node in roster.nodes.values() if not node.node_dir]
        is_due = now >= roster.attempt_at + roster.spec.target.gather_timeout
        if not missing or not is_due or not self.world.can_go_on_without(missing):
            return []
        actions = self.world.leave_out(missing, now, "")
        if not roster.has_all_facts or now < roster.resume_at:
            return actions
        return [*actions, *roster.share_checks(), *self._judge(now)]

    def _time_left(self, node: NodeState, now: float) -> float:
        """How long a lost or missing node is still waited for; 0 for one that is there, or need not come."""
        if not node.is_away or node.awaited_from is None:
            return 0.0
        roster = self.roster
        patience = roster.spec.target.gather_timeout if roster.may_change else roster.spec.recovery.node_wait
        return max(0.0, node.awaited_from + patience - now)

    def _await(self, node: NodeState, stamped: Stamped[NodeUnreachable], now: float) -> list[Action]:
        roster = self.roster
        node.refusal = stamped.fact.finding.message
        if roster.may_change and node.awaited_from is None:
            node.awaited_from = roster.attempt_at
        left = self._time_left(node, now)
        if not left or roster.has_unreachable or roster.refused_by_check:
            return []
        waited = now - (node.awaited_from or now)
        node.incarnation += 1  # of an agent whose first word got lost, nothing is taken for the next one's
        return [
            roster.stamp(NodeAwaited(round(waited, 1), round(left, 1), stamped.fact.finding.message), node.name),
            Reach(node.name, min(node.next_try(now), left)),
        ]

    def _failed_on_a_node(self, finding: Finding, now: float) -> list[Action]:
        """Give the others a moment to fail too: one sentence names them all."""
        note = self.roster.add_in_order(finding)
        self._deadline = min(self._deadline, now + GATHER_PATIENCE)
        return [note, *self._check(now)]

    def _check(self, now: float) -> list[Action]:
        """With a node that has failed: whether all have failed or answered."""
        roster = self.roster
        has_failed = roster.has_unreachable
        is_waiting = any(n.state == "connecting" for n in roster.nodes.values())
        if roster.refused_by_check and not has_failed:
            has_failed = True
            is_waiting = not roster.has_all_facts
        if has_failed and roster.state is State.GATHERING and (not is_waiting or now >= self._deadline):
            return self.ending.fail(now)
        return []

    def _judge(self, now: float) -> list[Action]:
        roster = self.roster
        checks = roster.context.checks
        findings = roster.judge(roster.nodes.values())
        failures = [f for f in findings if f.status == "fail"]
        actions: list[Action] = []
        if checks:
            actions.append(roster.stamp(NodesChecked(len(checks))))
        actions += roster.add_passing(findings)
        if failures:
            roster.refused_by_check = True
            return actions + self.ending.refuse(failures, now)
        if roster.plan is not None and not roster.may_change:
            return actions + self._gathered_again(now)
        roster.plan = make_plan(roster.spec, roster.cluster, roster.plan_facts)
        expected = roster.context.expected_world_size
        if expected is not None and expected != roster.plan.world_size:
            nodes = ", ".join(f"{name} {count}" for name, count in roster.rank_counts.items())
            planned = f"{count_of(roster.plan.world_size, 'rank')} ({nodes})"
            message = f"WORLD_SIZE={expected} is set here, but the plan has {planned}. The plan holds"
            remedy = "unset WORLD_SIZE, or change --nodes or --nproc"
            actions.append(roster.add_finding(Finding("world-size-mismatch", "warn", message, remedy)))
        return [*actions, *self.spares.judge_waiting(), *self.rendezvous.begin(now)]

    def _gathered_again(self, now: float) -> list[Action]:
        """Go on with the same plan: a node that came back must have room for the ranks it had."""
        roster = self.roster
        failures: list[Finding] = []
        for planned, node in roster.planned():
            name = node.name
            room = self.spares.room_of(node)
            if room is not None and room < planned.nproc:
                message = f"{name} has room for {count_of(room, 'rank')} now, and had {planned.nproc}"
                remedy = f"look at its GPUs: ssh {name} 'nvidia-smi -L || amd-smi list'"
                failures.append(Finding("world-size-mismatch", "fail", message, remedy, Where(node=name)))
        if failures:
            return self.ending.refuse(failures, now)
        return [*self.spares.judge_waiting(), *self.rendezvous.begin(now)]
