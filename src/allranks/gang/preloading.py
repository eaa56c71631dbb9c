"""Preloading: nodes import what their ranks will need while the rendezvous is checked, spares what nodes have. Pure.

What becomes of it on a node ends nothing: ranks that cannot be forked are started (agent/forking.py).
"""

from __future__ import annotations

from allranks.plan.environment import NodeLaunch
from allranks.plan.plan import forbids_template, preload_order
from allranks.plan.ranks import Attempt, NodePlan
from allranks.protocol.messages import TemplateMessage
from allranks.protocol.orders import OF_A_FORMER_RUN, ImportsOrder
from allranks.protocol.processes import ImportRecord
from allranks.protocol.run_facts import Stamped

from .members import NodeState
from .places import place_for
from .roster import Roster
from .states import Action, Send


class Preloading:
    """Which nodes have been asked to import, and what their templates have imported."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self._imports: ImportRecord | None = None
        self._asked: str | None = None

    @property
    def _is_possible(self) -> bool:
        roster = self.roster
        return roster.plan is not None and not roster.testing and not forbids_template(roster.spec)

    def begin(self) -> list[Action]:
        """Have the nodes of the plan that have no template yet import what a former run has."""
        roster = self.roster
        preload = roster.spec.recovery.preload
        if preload not in OF_A_FORMER_RUN or not self._is_possible:
            return []
        actions: list[Action] = []
        for planned, node in roster.planned():
            if not node.preloads:
                node.preloads = True
                actions.append(self._order(node, planned, None))
        return actions

    def _order(self, node: NodeState, planned: NodePlan, imports: ImportRecord | None) -> Send:
        """Have a node import for the ranks of a place. The master's address and the interfaces are not known yet."""
        roster = self.roster
        assert roster.plan is not None
        place = place_for(roster.spec, roster.context, node, {})
        launch = NodeLaunch(
            roster.spec, roster.plan.world_size, planned, place, Attempt(roster.attempt, "", 0), node.plan_facts
        )
        return Send(node.name, preload_order(launch, imports))

    # -- spares ------------------------------------------------------------------------------------

    def on_template(self, stamped: Stamped[TemplateMessage], now: float) -> list[Action]:
        """Ask one node that has a template for its imports, where a spare is to have one too."""
        roster = self.roster
        if stamped.fact.state != "ready":
            return []
        is_of_use = roster.spec.recovery.preload != "never" and roster.spec.tries_again and self._is_possible
        if not is_of_use or not roster.spares or self._imports is not None or self._asked in roster.nodes:
            return []
        self._asked = stamped.node
        return [Send(stamped.node, ImportsOrder())]

    def on_imports(self, stamped: Stamped[ImportRecord], now: float) -> list[Action]:
        """Have the spares that stand by import the same."""
        self._asked = None
        if not stamped.fact.modules:
            return []
        self._imports = stamped.fact
        actions: list[Action] = []
        for node in self.roster.spares.values():
            actions += self.of_spare(node)
        return actions

    def of_spare(self, node: NodeState) -> list[Action]:
        """Have a spare that stands by import what the nodes have: it may take the place of each."""
        plan = self.roster.plan
        if plan is None or self._imports is None or node.preloads or not node.stands_by:
            return []
        node.preloads = True
        return [self._order(node, plan.nodes[0], self._imports)]
