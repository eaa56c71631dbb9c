"""The gang: one state machine for all nodes of a run, (state, stamped fact, now) → actions. Pure.

    GATHERING --> LISTENING --> PROVING --> RUNNING --> ENDING --> OVER --> the controller judges
    nodes say     the master    each node   ranks       ranks      every       |
    hello, are    opens its     tries its   start, are  of every   log is      |
    looked at     port          addresses   watched     node end   here        |
        ^             ^                                                        |
        |             +---------------- again, with the same nodes ------------+
        +------------------------------ again, with another node --------------+

Any failure, a stop, and the last exit lead to ENDING, from every state before it. Each phase owns its state and its
decisions. What they all know of nodes and ranks is the roster. Which phase handles a fact in which state stands in
`Gang._make_table`. A fact without a row in the present state is never acted on. While the gang ends, or of an attempt
that is over, it comes late and is dropped. Else it is out of order, and is noted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from allranks.cluster import Cluster
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import (
    BoundMessage,
    CallTimesMessage,
    CountersMessage,
    DrainedMessage,
    EndedMessage,
    ExitMessage,
    FactsMessage,
    FaultMessage,
    HelloMessage,
    ListeningMessage,
    ProbedMessage,
    ReadyMessage,
    RemarkMessage,
    SavingMessage,
    ShippedMessage,
    StacksMessage,
    StartedMessage,
    TemplateMessage,
    WorldMessage,
)
from allranks.protocol.processes import ImportRecord
from allranks.protocol.run_facts import (
    AttemptStart,
    LauncherPaused,
    NodeBack,
    NodeLost,
    NodeSilent,
    PlainNote,
    Stamped,
    StopAsked,
)
from allranks.protocol.samples import NodeUsage
from allranks.settings import RunSpec

from .changing_world import ChangingWorld
from .connections import Connections
from .ending import Ending
from .gathering import Gathering
from .hangwatch import HangWatch
from .pace import PaceWatch
from .passed_signals import UserSignals
from .places import RunContext
from .policy import Decision
from .preloading import Preloading
from .ready_test import ReadyTest
from .rendezvous import RendezvousCheck
from .resuming import Resuming
from .roster import Roster
from .running import Running
from .saving import Saving
from .spares import HotSpares
from .states import (
    Action,
    Audited,
    EachSecond,
    Event,
    LooksComing,
    LookWanted,
    MayStart,
    NodeListed,
    NodeUnreachable,
    Quiet,
    RoleSeen,
    State,
    StepShown,
    Tick,
    UserSignal,
)
from .stragglers import StragglerWatch

Kind = TypeVar("Kind")
Handler = Callable[[Stamped[Event], float], list[Action]]
Row = tuple[type, Handler]

# A node may say these twice (the end is asked for again after a reconnect), and the second word may come late.
OF_AN_ATTEMPT = (StartedMessage, WorldMessage, ExitMessage, EndedMessage, DrainedMessage, Audited, SavingMessage)


def on(kind: type[Kind], take: Callable[[Stamped[Kind], float], list[Action]]) -> Row:
    """Give a row of the table: who takes a fact of this kind. A wrong pair is a type error."""
    return kind, take  # type: ignore[return-value]  # the table is asked by the kind of the fact


class Gang:
    """Decides; the controller acts. Read the `roster`, `hang_watch.hang` and `spares.ready` after each fact."""

    def __init__(self, spec: RunSpec, cluster: Cluster, context: RunContext, now: float, t: float) -> None:
        """`now` and `t` as in `handle`."""
        self.roster = Roster(spec, cluster, context, now, t)
        self.ending = Ending(self.roster)
        self.preloading = Preloading(self.roster)
        self.spares = HotSpares(self.roster, self.preloading)
        self.saving = Saving(self.roster, self.ending)
        self.signals = UserSignals(self.roster, self.saving)
        self.running = Running(self.roster, self.ending, self.saving)
        self.ready_test = ReadyTest(self.roster, self.ending)
        self.hang_watch = HangWatch(self.roster, self.ending)
        self.world = ChangingWorld(self.roster, self.ending, self.saving)
        self.rendezvous = RendezvousCheck(
            self.roster, self.ending, self.running, self.preloading, self.world, ready_test=self.ready_test
        )
        self.stragglers = StragglerWatch(self.roster)
        self.pace = PaceWatch(self.roster, self.stragglers)
        self.gathering = Gathering(self.roster, self.ending, self.spares, self.world, self.rendezvous)
        self.connections = Connections(self.roster, self.ending, self.gathering, self.running, self.signals)
        self.resuming = Resuming(self.roster, self.ending, self.world, self.hang_watch)
        self.table = self._make_table()
        self._of_spares: dict[type, Handler] = dict(self._rows_of_spares())

    # -- who takes what ------------------------------------------------------------------------------

    def _make_table(self) -> dict[State, dict[type, Handler]]:
        """Give the handlers of each state; of two rows for one kind the later counts."""
        always = [
            on(StopAsked, self.ending.on_stop),
            on(LauncherPaused, lambda stamped, now: [stamped]),  # what nodes did meanwhile, they did because of it
            on(NodeListed, self.world.on_listed),
            on(NodeSilent, self.connections.on_silent),
            on(NodeBack, self.connections.on_back),
            on(NodeLost, self.connections.on_lost),
            on(FaultMessage, self.connections.on_fault),
            on(RemarkMessage, self.connections.on_remark),
            on(HelloMessage, self.connections.on_hello),
            on(TemplateMessage, self.preloading.on_template),
            on(ImportRecord, self.preloading.on_imports),
            on(UserSignal, self.signals.on_user_signal),
        ]
        starting = [*always, on(Tick, self.ending.on_tick_of_start)]
        gathering = [
            on(Tick, self.gathering.on_tick),
            on(ShippedMessage, self.gathering.on_shipped),
            on(FactsMessage, self.gathering.on_facts),
            on(NodeUnreachable, self.gathering.on_unreachable),
        ]
        proving = [
            on(ProbedMessage, self.rendezvous.on_probed),
            on(MayStart, self.rendezvous.on_may_start),
            on(ReadyMessage, self.rendezvous.on_ready_before),
            on(Tick, self.rendezvous.on_tick),
        ]
        with_ranks = [
            *always,
            on(BoundMessage, self.running.on_bound),
            on(StartedMessage, self.running.on_started),
            on(ReportMessage, self.running.on_report),
            on(ExitMessage, self.running.on_exit),
            on(EndedMessage, self.ending.on_ended),
            on(SavingMessage, self.saving.on_answer),
        ]
        ending = [
            on(Tick, lambda stamped, now: self.ending.check(now)),
            on(DrainedMessage, self.ending.on_drained),
            on(NodeUnreachable, self.gathering.on_unreachable),
        ]
        return {
            State.GATHERING: dict([*starting, *gathering]),
            State.LISTENING: dict([*starting, on(ListeningMessage, self.rendezvous.on_listening)]),
            State.PROVING: dict([*starting, *proving]),
            State.RUNNING: dict([*with_ranks, *self._rows_while_running()]),
            State.ENDING: dict([*with_ranks, *ending]),
            State.OVER: {},
        }

    def _rows_while_running(self) -> list[Row]:
        return [
            on(StopAsked, self.saving.on_stop),
            on(Tick, self._on_tick_of_ranks),
            on(ReadyMessage, self.ready_test.on_ready),
            on(WorldMessage, self.running.groups.on_world),
            on(Quiet, self.hang_watch.on_quiet),
            on(LookWanted, self.hang_watch.on_look_wanted),
            on(LooksComing, self.hang_watch.on_looks_coming),
            on(RoleSeen, self.hang_watch.on_role_seen),
            on(StacksMessage, self.hang_watch.on_stacks),
            on(CountersMessage, self.hang_watch.on_counters),
            on(NodeUsage, self.pace.on_used),
            on(StepShown, self.pace.on_step),
            on(EachSecond, self.stragglers.on_pace),
            on(CallTimesMessage, self.stragglers.on_call_times),
            on(Audited, self.running.on_audited),
        ]

    def _on_tick_of_ranks(self, stamped: Stamped[Tick], now: float) -> list[Action]:
        return self.ready_test.on_tick(stamped, now) or self.running.on_tick(now) or self.world.on_tick(now)

    def _rows_of_spares(self) -> list[Row]:
        """Give the handlers for a node that stands by, in any state: whatever happens to it ends nothing."""
        return [
            on(HelloMessage, self.spares.on_hello),
            on(ShippedMessage, self.spares.on_shipped),
            on(FactsMessage, self.spares.on_facts),
            on(NodeUnreachable, self.spares.on_unreachable),
            on(FaultMessage, self.spares.on_fault),
            on(RemarkMessage, self.connections.on_remark),
            on(NodeSilent, self.spares.on_silent),
            on(NodeBack, self.spares.on_back),
            on(NodeLost, self.spares.on_lost),
        ]

    # -- deciding --------------------------------------------------------------------------------------

    def begin(self) -> list[Action]:
        """Return the first actions."""
        tree = self.roster.context.tree
        start = self.roster.stamp(AttemptStart())
        return [start] if tree is None else [start, self.roster.stamp(tree)]

    def handle(self, stamped: Stamped[Event], now: float, t: float) -> list[Action]:
        """Decide about a fact. `now` counts seconds of a clock that is never set, and every limit goes by it;
        `t` is unix seconds on the controller's clock, for what is stored."""
        roster = self.roster
        roster.event_t = t
        kind = type(stamped.fact)
        if stamped.node in roster.retired:
            return []
        if stamped.node in roster.spares:
            take = self._of_spares.get(kind)
            return take(stamped, now) if take is not None else []  # what a spare was not asked is dropped
        take = self.table[roster.state].get(kind)
        if take is None:
            fact = stamped.fact
            is_of_another = roster.is_adopted and kind is DrainedMessage  # the controller before has ended the node
            is_of_former_attempt = isinstance(fact, OF_AN_ATTEMPT) and fact.attempt < roster.attempt
            if is_of_another or is_of_former_attempt or roster.state in (State.ENDING, State.OVER):
                return []
            return [roster.stamp(PlainNote(f"{kind.__name__} of {stamped.node} came out of order"))]
        actions = take(stamped, now)
        self.connections.remember(actions)
        return actions

    def retry(self, now: float, decision: Decision) -> list[Action]:
        """Start the whole gang again, as it was decided."""
        roster = self.roster
        roster.testing = roster.testing and decision.kind != "train"
        roster.attempt += 1  # logs are kept apart whatever the reason
        roster.begin_attempt(now, decision.pause)
        self.rendezvous.begin_attempt(with_another_port=decision.kind == "repeat")
        self.running.begin_attempt(is_repeat=decision.kind != "retry")
        self.ending.begin_attempt()
        self.ready_test.begin_attempt()
        self.signals.begin_attempt()
        self.saving.begin_attempt()
        self.hang_watch.begin_attempt()
        self.pace.begin_attempt()
        self.stragglers.begin_attempt()
        self.world.begin_attempt()
        anew = [old for old, new in decision.replace.items() if old == new]
        self.connections.forget([*anew, *decision.leave_out])
        actions: list[Action] = [roster.stamp(AttemptStart())]
        actions += self.spares.change_nodes(decision.replace, decision.pause)
        actions += self.world.leave_out(decision.leave_out, now, decision.why_out)
        actions += self.world.take_in(decision.take_in)
        return actions + self.gathering.begin_attempt(now, is_paused=decision.pause > 0)
