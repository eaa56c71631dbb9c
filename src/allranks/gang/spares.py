"""Hot spares: reached and looked at like nodes, they take the place of one at a further attempt. Pure.

What happens to a spare ends nothing: it is a warning, and one spare less. A node whose agent is lost or dead can be
reached again, with an agent and a node directory of its own, where no spare is there.
"""

from __future__ import annotations

from collections.abc import Mapping

from allranks.cluster import Cluster
from allranks.findings import Finding, Where
from allranks.plan.plan import room_on
from allranks.protocol.messages import FactsMessage, FaultMessage, HelloMessage, ShippedMessage
from allranks.protocol.run_facts import (
    NodeBack,
    NodeLeft,
    NodeLost,
    NodeReachedAgain,
    NodeReady,
    NodeReplaced,
    NodeSilent,
    SpareReady,
    Stamped,
    TreeArrived,
    WorkingTree,
)
from allranks.text import count_of, name_with

from .members import STANDS_BY, NodeState
from .places import keep_order
from .preloading import Preloading
from .roster import Roster
from .states import Action, NodeUnreachable, Reach, Send

SPARE_UNUSED = "spare-unused"  # the finding of a hot spare that is of no use
NO_ROOM = (28, 122)  # ENOSPC, EDQUOT


class HotSpares:
    """Nodes without ranks, and who takes whose place."""

    def __init__(self, roster: Roster, preloading: Preloading) -> None:
        self.roster = roster
        self.preloading = preloading

    def judge_waiting(self) -> list[Action]:
        """Judge the spares that have been looked at and not judged yet; nothing before the nodes have passed."""
        actions: list[Action] = []
        if self.roster.plan is not None:
            for node in self.roster.spares.values():
                if node.facts is not None and node.state == "ready":
                    actions += self._judge(node)
        return actions

    def room_of(self, node: NodeState) -> int | None:
        """Ranks that fit on a node; GPUs count where the other nodes have one for each of their ranks."""
        roster = self.roster
        entries = roster.cluster.everyone
        entry = next(n for n in entries if n.name == node.name)
        room = room_on(entry, node.plan_facts)
        if entry.slots is not None or room is None or roster.plan is None or roster.spec.target.local:
            return entry.slots
        for planned, other in roster.planned():
            if other.name == node.name:
                continue
            present = room_on(planned.node, other.plan_facts)
            if present is None or present < planned.nproc:
                return None
        return room

    @property
    def ready(self) -> dict[str, int | None]:
        """Spares that can take a place at once, in the order of the list, with the ranks each can run. Before the nodes
        have been judged, those that answer: they will be judged with them."""
        fit = [STANDS_BY]
        if self.roster.plan is None:
            fit.append("ready")
        return {n.name: self.room_of(n) for n in self.roster.spares.values() if n.state in fit}

    def _judge(self, node: NodeState) -> list[Action]:
        roster = self.roster
        findings = roster.judge((*roster.nodes.values(), node))
        failed = next((f for f in findings if f.status == "fail"), None)  # the others have passed by themselves
        if failed is not None:
            return self._drop(node, failed.message, failed.remedy)
        room = self.room_of(node)
        needs = roster.rank_counts.values()
        if room is not None and not roster.may_change and all(need > room for need in needs):
            least = min(needs)
            return self._drop(node, f"it has room for {count_of(room, 'rank')}, and every node runs {least} or more")
        node.state = STANDS_BY
        actions: list[Action] = [roster.stamp(SpareReady(), node.name)]
        if roster.context.keeps_launch:
            actions.append(Send(node.name, keep_order(roster.spec, roster.context)))
        return actions + self.preloading.of_spare(node)

    def _drop(self, node: NodeState, why: str, remedy: str = "") -> list[Action]:
        node.state = "unfit" if node.node_dir else "unreachable"
        message = f"spare {node.name} is not used: {why}"
        finding = Finding(SPARE_UNUSED, "warn", message, remedy, Where(node=node.name), lasts=True)
        return [*self.roster.add_lasting(finding)]

    # -- events, in any state of the gang --------------------------------------------------------------

    def on_hello(self, stamped: Stamped[HelloMessage], now: float) -> list[Action]:
        """First word of its agent, or the word of one that was away."""
        node = self.roster.spares[stamped.node]
        is_first = not node.node_dir
        node.node_dir = stamped.fact.node_dir
        node.hostname = stamped.fact.hostname
        if stamped.fact.dead:
            return self._drop(node, f"its agent {stamped.fact.how}")
        actions = self.on_back(self.roster.stamp(NodeBack(), node.name), now)
        if is_first:
            node.state = "ready"
            actions = [self.roster.stamp(NodeReady(stamped.fact.hostname), node.name)]
        if node.facts is None:
            actions.append(self.roster.first_order(node))
        return actions

    def on_shipped(self, stamped: Stamped[ShippedMessage], now: float) -> list[Action]:
        """Look at a hot spare that has the tree."""
        node = self.roster.spares[stamped.node]
        failure = shipping_failure(self.roster.context.tree, stamped)
        if failure is not None:
            return self._drop(node, failure.message, failure.remedy)
        node.synced = True
        arrived = self.roster.stamp(TreeArrived(stamped.fact.path, stamped.fact.files), node.name)
        return [arrived, self.roster.first_order(node)]

    def on_facts(self, stamped: Stamped[FactsMessage], now: float) -> list[Action]:
        """Judged beside the nodes, once those have been."""
        node = self.roster.spares[stamped.node]
        actions: list[Action] = [self.roster.stamp(node.take_answer(stamped.fact), node.name)]
        if stamped.fact.error:
            return actions + self._drop(node, stamped.fact.error, "try the --prelude by hand on the node")
        actions += self.roster.share_checks()
        return actions + self.judge_waiting()

    def on_unreachable(self, stamped: Stamped[NodeUnreachable], now: float) -> list[Action]:
        """Count one spare less; a node that has lost its place is reached again."""
        node = self.roster.spares[stamped.node]
        if node.awaited_from is None:
            return self._drop(node, stamped.fact.finding.message, stamped.fact.finding.remedy)
        node.incarnation += 1  # of an agent whose first word got lost, nothing is taken for the next one's
        return [Reach(node.name, node.next_try(now))]

    def on_fault(self, stamped: Stamped[FaultMessage], now: float) -> list[Action]:
        """Its agent has trouble of its own."""
        return self._drop(self.roster.spares[stamped.node], stamped.fact.message)

    def on_silent(self, stamped: Stamped[NodeSilent], now: float) -> list[Action]:
        """Hold back a hot spare that is not heard."""
        node = self.roster.spares[stamped.node]
        if node.state not in (STANDS_BY, "ready"):
            return []
        node.state = "silent"
        return [stamped]

    def on_back(self, stamped: Stamped[NodeBack], now: float) -> list[Action]:
        """Heard again, in time."""
        node = self.roster.spares[stamped.node]
        if node.state != "silent":
            return []
        node.state = "ready"
        return [stamped, *self.judge_waiting()]

    def on_lost(self, stamped: Stamped[NodeLost], now: float) -> list[Action]:
        """Give it up, or reach it again where it has lost its place before."""
        roster = self.roster
        node = roster.spares[stamped.node]
        if roster.may_change:
            fresh = roster.spares[node.name] = node.renewed(now, "away")
            left = NodeLeft("nothing was heard from it for the whole lease")
            return [roster.stamp(left, node.name), Reach(node.name, fresh.next_try(now))]
        actions = self._drop(node, "nothing was heard from it for the whole lease")
        node.state = "lost"
        return actions

    # -- who takes whose place -----------------------------------------------------------------------

    def change_nodes(self, replace: Mapping[str, str], pause: float) -> list[Action]:
        """Nodes give their places to spares; one that stands for itself is reached again, after `pause` seconds."""
        actions: list[Action] = []
        for old, new in replace.items():
            if new == old:
                actions += self._reach_again(self.roster.nodes[old], pause)
            else:
                actions += self._stand_in(old, new)
        return actions

    def _stand_in(self, old: str, new: str) -> list[Action]:
        roster = self.roster
        node = roster.spares.pop(new)
        node.state = "ready"
        retired = roster.nodes[old]
        if not retired.gone:
            retired.state = "replaced"
        roster.retired[old] = retired
        roster.exchange(old, node)
        entry = next(n for n in roster.cluster.spares if n.name == new)
        nodes = tuple(entry if n.name == old else n for n in roster.cluster.nodes)
        spares = tuple(n for n in roster.cluster.spares if n is not entry)
        roster.cluster = Cluster(nodes, roster.cluster.source, spares)
        if roster.plan is not None:
            roster.plan = roster.plan.with_node(old, entry)
        return [roster.stamp(NodeReplaced(new), old)]

    def _reach_again(self, old: NodeState, pause: float) -> list[Action]:
        roster = self.roster
        cut: list[Action] = []
        if old.ranks and not old.drained:
            message = f"{old.name}'s logs of attempt {roster.attempt - 1} end where the node was lost"
            remedy = f"the rest, if it lives, is in {old.node_dir} on {old.name}"
            cut.append(roster.add_finding(Finding("logs-cut", "warn", message, remedy, Where(node=old.name))))
        awaited_from = roster.attempt_at if old.node_dir or old.is_away else None
        roster.exchange(old.name, old.renewed(awaited_from))
        return [*cut, roster.stamp(NodeReachedAgain(), old.name), Reach(old.name, pause)]


def shipping_failure(tree: WorkingTree | None, stamped: Stamped[ShippedMessage]) -> Finding | None:
    """Return what is wrong with the tree that has arrived on a node; None where it is whole."""
    error = stamped.fact.error
    if not error and tree is not None and (stamped.fact.sha256, stamped.fact.files) != (tree.sha256, tree.files):
        arrived = name_with(count_of(stamped.fact.files, "file"), stamped.fact.sha256[:12])
        error = f"{arrived} arrived, {tree.files} ({tree.sha256[:12]}) were sent"
    if not error:
        return None
    path = stamped.fact.path
    if stamped.fact.errno in NO_ROOM:
        check = "disk-full"
        message = f"{stamped.node} has no room for the synced tree in {path}: {error}"
        remedy = "free some space there, name another place with --node-dir, or list what is not code in .gitignore"
    else:
        check = "tree-not-shipped"
        message = f"the synced tree is not in {path} on {stamped.node}: {error}"
        look = f"ls -ld {path.rpartition('/')[0]} on the node, then allranks logs --node {stamped.node}"
        remedy = f"{look}, or run without --sync"
    return Finding(check, "fail", message, remedy, Where(node=stamped.node))
