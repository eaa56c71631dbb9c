"""The gang: one state machine for all nodes of a run, (state, event, now) → actions. Pure.

Nodes gather, the master listens, every node proves that it reaches it, ranks start everywhere, and the first failure
ends all of them. Each phase owns its state and its decisions; what they all know of nodes and ranks is the roster.
Which phase handles an event in which state stands in `states.TABLE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from allranks.cluster import Cluster
from allranks.protocol.run_facts import AttemptStart, PlainNote, TreeListed
from allranks.settings import RunSpec

from .connections import Connections
from .ending import Ending
from .gathering import Gathering
from .hangwatch import HangWatch
from .pace import PaceWatch
from .passed_signals import UserSignals
from .places import Setting
from .preloading import Preloading
from .rendezvous import RendezvousCheck
from .roster import Roster
from .running import Running
from .saving import Saving
from .spares import HotSpares
from .states import OF_AN_ATTEMPT, SPARE_TABLE, TABLE, Action, Event
from .stragglers import StragglerWatch

Handler = Callable[[Any, float], list[Action]]


class Gang:
    """Decides; the controller acts. Read the `roster`, `hang_watch.hang` and `spares.ready` after each event."""

    def __init__(self, spec: RunSpec, cluster: Cluster, setting: Setting, now: float, t: float) -> None:
        """`now` and `t` as in `handle`."""
        self.roster = Roster(spec, cluster, setting, now, t)
        self.ending = Ending(self.roster)
        self.preloading = Preloading(self.roster)
        self.spares = HotSpares(self.roster, self.preloading)
        self.saving = Saving(self.roster, self.ending)
        self.signals = UserSignals(self.roster, self.saving)
        self.running = Running(self.roster, self.ending, self.saving)
        self.hang_watch = HangWatch(self.roster, self.ending)
        self.rendezvous = RendezvousCheck(self.roster, self.ending, self.running, self.preloading)
        self.stragglers = StragglerWatch(self.roster)
        self.pace = PaceWatch(self.roster, self.stragglers)
        self.gathering = Gathering(self.roster, self.ending, self.spares, self.rendezvous)
        self.connections = Connections(self.roster, self.ending, self.gathering, self.running, self.signals)

    def begin(self) -> list[Action]:
        """Return the first actions."""
        start = self.roster.stamp(AttemptStart())
        tree = self.roster.setting.tree
        if tree is None:
            return [start]
        listed = TreeListed(tree.root, tree.files, tree.bytes, tree.sha256, tree.left_out, tree.limit)
        return [start, self.roster.stamp(listed)]

    def handle(self, event: Event, now: float, t: float) -> list[Action]:
        """Decide about an event. `now` counts seconds of a clock that is never set, and every limit goes by it;
        `t` is unix seconds on the controller's clock, for what is stored."""
        roster = self.roster
        roster.event_t = t
        if event.node in roster.retired:
            return []
        if event.node in roster.spares:
            name = SPARE_TABLE.get(type(event), "ignore")  # what a spare was not asked is ignored
        else:
            name = TABLE[roster.state].get(type(event), "")
        comes_late = isinstance(event, OF_AN_ATTEMPT) and event.attempt < roster.attempt
        if name == "ignore" or (comes_late and not name):
            return []
        if not name:
            return [roster.stamp(PlainNote(f"{type(event).__name__} of {event.node} came out of order"))]
        actions = self.handler(name)(event, now)
        self.connections.remember(actions)
        return actions

    def ask_for_usage(self, now: float) -> list[Action]:
        """Give the orders for samples of nodes that have not been asked in this attempt."""
        return self.pace.ask(now)

    def handler(self, name: str) -> Handler:
        """Return the method that an entry of the tables names: `phase.on_event`."""
        phase, _, method = name.partition(".")
        handler: Handler = getattr(getattr(self, phase), method)
        return handler

    def retry(
        self, now: float, t: float, why: str, replace: Mapping[str, str] | None = None, pause: float = 0.0
    ) -> list[Action]:
        """Start the whole gang again: `retry` after a failure, `repeat` with another port, `train` after the test.

        `replace` maps nodes to the spares that take their places, or to themselves: those are reached again. Nothing is
        tried for `pause` seconds.
        """
        roster = self.roster
        roster.testing = roster.testing and why != "train"
        roster.begin_further_attempt(now, t, pause)  # logs are kept apart whatever the reason
        self.rendezvous.begin_attempt(with_another_port=why == "repeat")
        self.running.begin_attempt(is_repeat=why != "retry")
        self.ending.begin_attempt()
        self.signals.begin_attempt()
        self.saving.begin_attempt()
        self.hang_watch.begin_attempt()
        self.pace.begin_attempt()
        self.stragglers.begin_attempt()
        self.connections.forget(old for old, new in (replace or {}).items() if old == new)
        actions: list[Action] = [roster.stamp(AttemptStart())]
        actions += self.spares.change_nodes(replace or {}, pause)
        return actions + self.gathering.begin_attempt(now, is_paused=pause > 0)
