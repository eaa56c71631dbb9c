"""A world that may change: a run with --nodes MIN:MAX goes on with the nodes that are there. Pure.

    has a place --(lost, or not there in time)--> away --(reached, looked at)--> stands by --(--regrow)--> has a place

A node that is away is reached again for as long as the run lasts. It gets its place back between two attempts: after a
failure, or where an attempt ends for it. Nodes then get new numbers, in the order of the host list.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from allranks.plan.plan import make_plan
from allranks.protocol.run_facts import (
    NodeAdded,
    NodeLeft,
    NodeTakenIn,
    PlainNote,
    RegrowBegun,
    Stamped,
    WorldChanged,
)
from allranks.text import join_words

from .ending import Ending
from .members import NodeState
from .roster import Roster
from .saving import Saving
from .states import Action, Admit, NodeListed, Reach, State

SETTLES = 2.0  # seconds in which nodes that come back together are taken in together
UNSEEN = 120.0  # seconds of an attempt that shows no process group and no call, before it may end for others


class ChangingWorld:
    """Who has a place, in a run whose number of nodes may change."""

    def __init__(self, roster: Roster, ending: Ending, saving: Saving) -> None:
        self.roster = roster
        self.ending = ending
        self.saving = saving
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self.regrows = False  # the present attempt ends for nodes that stand by
        self._waiting_since: float | None = None
        self._asked_save = False

    # -- places ------------------------------------------------------------------------------------

    def can_go_on_without(self, names: Collection[str]) -> bool:
        """Whether enough nodes are left."""
        least = self.roster.spec.target.min_nodes
        return least is not None and len(self.roster.nodes.keys() - set(names)) >= least

    def newcomers(self) -> list[str]:
        """Nodes that stand by and find a place, in the order of the list."""
        roster = self.roster
        if not roster.may_change:
            return []
        ready = sorted((n for n in roster.spares.values() if n.stands_by), key=lambda node: node.index)
        return [node.name for node in ready[: max(0, roster.most_nodes - len(roster.nodes))]]

    def leave_out(self, names: Collection[str], now: float, why: str) -> list[Action]:
        """Take places away: lost and missing nodes are reached again, another stays out of the run."""
        roster = self.roster
        actions: list[Action] = []
        if not names:
            return actions
        for name in names:
            old = roster.nodes[name]
            actions.append(roster.stamp(NodeLeft(why or old.refusal or "it has not answered yet"), name))
            if not old.node_dir:  # it is being reached
                old.state = "away"
                old.awaited_from = now
            elif old.gone:
                roster.nodes[name] = old.renewed(now, "away")
                actions.append(Reach(name, old.next_try(now)))
            else:
                old.state = "unfit"
        self._give_places(roster.nodes.keys() - set(names))
        return actions

    def take_in(self, names: Collection[str]) -> list[Action]:
        """Give places to nodes that stand by."""
        roster = self.roster
        if not names:
            return []
        for name in names:
            roster.spares[name].state = "ready"
            roster.spares[name].awaited_from = None
        self._give_places(roster.nodes.keys() | set(names))
        return [roster.stamp(NodeTakenIn(), name) for name in names]

    def _give_places(self, names: Collection[str]) -> None:
        """Give these nodes places, with new numbers in the order of the list; the others have no ranks."""
        roster = self.roster
        roster.set_places(names)
        roster.plan = None
        if roster.has_all_facts:
            roster.plan = make_plan(roster.spec, roster.cluster, roster.plan_facts)

    def said(self) -> list[Action]:
        """Say that the attempt, whose plan is made, has another world than the one before, or not all nodes."""
        roster = self.roster
        is_smaller = not roster.former_world_size and len(roster.nodes) < roster.most_nodes
        is_other = roster.former_world_size not in (0, roster.world_size)
        if not roster.may_change or not (is_smaller or is_other):
            return []
        change = WorldChanged(len(roster.nodes), roster.most_nodes, roster.world_size, roster.former_world_size)
        return [roster.stamp(change)]

    def on_listed(self, stamped: Stamped[NodeListed], now: float) -> list[Action]:
        """Let a node stand by that was added to the host list."""
        roster = self.roster
        index = 1 + max(node.index for node in roster.everyone.values())
        node = replace(stamped.fact.node, index=index)
        if not roster.may_change or node.name in roster.everyone:
            return []
        roster.spares[node.name] = NodeState(node.name, index, state="away", awaited_from=now)
        roster.cluster = replace(roster.cluster, spares=(*roster.cluster.spares, node))
        return [roster.stamp(NodeAdded(node.host), node.name), Admit(node)]

    # -- growing again -----------------------------------------------------------------------------

    def on_tick(self, now: float) -> list[Action]:
        """End the attempt in which nodes stand by that find a place, at a step that all ranks have saved at."""
        roster = self.roster
        regrow = roster.spec.target.regrow
        if roster.state is not State.RUNNING or roster.testing or regrow == "never" or not self._is_settled(now):
            return []
        if regrow == "now":
            return self._begin(now)
        saved = self.saving.saved
        if self._asked_save and self.saving.is_over and saved is not None:
            return self._begin(now)
        if self._asked_save:
            return []
        self._asked_save = True
        if self.saving.callers:
            return self.saving.ask(now, "regrow")
        remark = (
            f"{join_words(self.newcomers())} can take a place. No rank has called allranks.should_save, so it waits "
            "for that or the next failure (--regrow now does not)"
        )
        return [roster.stamp(PlainNote(remark)), *self.saving.ask(now, "regrow")]

    def _is_settled(self, now: float) -> bool:
        roster = self.roster
        if not self.newcomers():
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        has_shown_itself = roster.initialised_t is not None or bool(self.saving.callers)
        has_begun = has_shown_itself or now - roster.attempt_at >= UNSEEN
        return has_begun and now - self._waiting_since >= SETTLES

    def _begin(self, now: float) -> list[Action]:
        roster = self.roster
        self.regrows = True
        begun = roster.stamp(RegrowBegun(tuple(self.newcomers())))
        return [begun, *self.ending.end(now, roster.spec.limits.stop_grace, "regrow")]

    @property
    def has_regrown(self) -> bool:
        """Whether the attempt that is over was ended for newcomers, and neither failed nor came to its own end."""
        roster = self.roster
        if not self.regrows or roster.failed_t is not None or roster.stop_reason is not None:
            return False
        return any(end.fact.expected for end in roster.exits)
