"""Resuming: a gang goes on from the log of its run, which another controller has written. Pure.

A fold over the facts: the gang handles what happens, here is taken what has happened. Ranks that were started run, and
nothing is ordered: their agents will say hello, and tell what is not in the log. `tests/gang/test_gang.py` compares the
fold with the gang that wrote the log after each step of each of its scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from allranks.diagnose.recorded import COUNTED
from allranks.findings import Finding
from allranks.protocol.messages import EndedMessage, ExitMessage, FaultMessage, StartedMessage
from allranks.protocol.run_facts import (
    AllInitialised,
    AttemptStart,
    EndingBegun,
    Fact,
    FailureNoted,
    GateProved,
    HangConcluded,
    InitTimeout,
    NodeLeft,
    NodeLost,
    NodeReady,
    NodeReplaced,
    PlanMade,
    RankDeparted,
    RankEntered,
    RankInitialised,
    RankLeaving,
    RegrowBegun,
    RetryDecided,
    SpareReady,
    Stamped,
    StopAsked,
    SuitePassed,
    on,
)

from .changing_world import ChangingWorld
from .ending import Ending
from .hangwatch import HangWatch
from .members import RankState
from .remarks import SPARE_UNUSED
from .roster import Roster
from .states import State

UNKNOWN = "?"  # the node directory of an agent that has not said hello to this controller


def spares_of(facts: Iterable[Stamped[Fact]], others: Collection[str]) -> set[str]:
    """Give the hot spares, of the nodes without ranks, that may still be of use: their agents have said hello."""
    waiting: set[str] = set()
    for stamped in facts:
        if isinstance(stamped.fact, (NodeReady, SpareReady)):
            waiting.add(stamped.node)
        elif isinstance(stamped.fact, (NodeLost, NodeReplaced, NodeLeft, FaultMessage)):
            waiting.discard(stamped.node)
        elif isinstance(stamped.fact, Finding) and stamped.fact.id == SPARE_UNUSED:
            waiting.discard(stamped.fact.where.node or "")
    return waiting & set(others)


class Resuming:
    """The part of the gang that takes a run over."""

    def __init__(self, roster: Roster, ending: Ending, world: ChangingWorld, hang_watch: HangWatch) -> None:
        self.roster = roster
        self.world = world
        self.ending = ending
        self.hang_watch = hang_watch
        self._now = 0.0
        self._t = 0.0
        self._table: dict[type, Callable[[Stamped[Fact]], None]] = dict(
            (
                on(AttemptStart, self._on_attempt_start),
                on(SuitePassed, self._on_suite_passed),
                on(PlanMade, self._on_plan),
                on(GateProved, self._on_proved),
                on(StartedMessage, self._on_started),
                on(RankEntered, self._on_entered),
                on(RankDeparted, self._on_entered),
                on(RankInitialised, self._on_initialised),
                on(AllInitialised, self._on_all_initialised),
                on(RankLeaving, self._on_leaving),
                on(ExitMessage, self._on_exit),
                on(EndedMessage, self._on_ended),
                on(NodeLost, self._on_lost),
                on(FaultMessage, self._on_fault),
                on(Finding, self._on_finding),
                on(FailureNoted, self._on_failed),
                on(InitTimeout, self._on_init_timeout),
                on(HangConcluded, self._on_hang),
                on(StopAsked, self._on_stop),
                on(RegrowBegun, self._on_regrow),
                on(EndingBegun, self._on_ending),
                on(RetryDecided, self._on_retry),
            )
        )

    def resume(self, facts: Iterable[Stamped[Fact]], now: float, t: float) -> None:
        """Take the facts of a run up to now; `now` and `t` as in `Gang.handle`."""
        self._now = now
        self._t = t
        self.roster.is_adopted = True
        self.roster.state = State.RUNNING
        for stamped in facts:
            take = self._table.get(type(stamped.fact))
            if take is not None:
                take(stamped)
        for node in self.roster.nodes.values():
            node.node_dir = UNKNOWN
            if node.state != "lost":
                node.state = "silent"
        if self.roster.state is State.ENDING:
            self.ending.resume(now)

    def _at(self, t: float) -> float:
        """When that was by the clock of the limits."""
        return self._now - max(0.0, self._t - t)

    def _rank(self, node: str, rank: int) -> RankState | None:
        state = self.roster.nodes.get(node)
        return state.ranks.get(rank) if state is not None else None

    # -- the attempt -------------------------------------------------------------------------------

    def _on_attempt_start(self, stamped: Stamped[AttemptStart]) -> None:
        roster = self.roster
        roster.attempt = stamped.attempt or 0
        roster.begin_attempt(self._at(stamped.t), stamped.t)
        roster.state = State.RUNNING
        self.hang_watch.begin_attempt()
        self.world.begin_attempt()
        for node in roster.nodes.values():
            node.begin_attempt()
            node.state = "connecting"

    def _on_suite_passed(self, stamped: Stamped[SuitePassed]) -> None:
        self.roster.testing = False

    def _on_plan(self, stamped: Stamped[PlanMade]) -> None:
        self._deal(stamped.fact.ranks)

    def _on_proved(self, stamped: Stamped[GateProved]) -> None:
        self.roster.master_addr = stamped.fact.address
        self.roster.master_port = stamped.fact.port
        self._deal(stamped.fact.ranks)

    def _deal(self, ranks: Mapping[str, int]) -> None:
        first = 0
        for name, count in ranks.items():
            node = self.roster.nodes.get(name)
            own = 1 if self.roster.has_one_process else count
            dealt = {first + local: RankState(first + local, local) for local in range(own)}
            if node is not None and node.ranks.keys() != dealt.keys():
                node.take_ranks(dealt)
            first += count

    def _on_retry(self, stamped: Stamped[RetryDecided]) -> None:
        self.roster.remember_verdict(stamped.fact.verdict)

    # -- ranks -------------------------------------------------------------------------------------

    def _on_started(self, stamped: Stamped[StartedMessage]) -> None:
        rank = self._rank(stamped.node, stamped.fact.rank)
        if rank is not None:
            rank.start(stamped.fact.pid)

    def _on_entered(self, stamped: Stamped[RankEntered] | Stamped[RankDeparted]) -> None:
        rank = self._rank(stamped.node, stamped.fact.rank)
        if rank is not None:
            rank.entered = True

    def _on_initialised(self, stamped: Stamped[RankInitialised]) -> None:
        self.roster.note_limit(stamped.fact.limit)
        rank = self._rank(stamped.node, stamped.fact.rank)
        if rank is not None:
            rank.initialise(stamped.t)

    def _on_leaving(self, stamped: Stamped[RankLeaving]) -> None:
        rank = self._rank(stamped.node, stamped.fact.rank)
        if rank is not None:
            rank.departure.take(stamped.fact, stamped.t, self._at(stamped.t))

    def _on_exit(self, stamped: Stamped[ExitMessage]) -> None:
        rank = self._rank(stamped.node, stamped.fact.rank)
        if rank is None:
            return
        end = Stamped(stamped.node, stamped.t, stamped.attempt, stamped.fact._replace(pid=rank.pid))
        rank.take_exit(end, self._at(stamped.t))
        self.roster.exits.append(end)

    def _on_all_initialised(self, stamped: Stamped[AllInitialised]) -> None:
        self.roster.initialised_t = stamped.t

    # -- nodes -------------------------------------------------------------------------------------

    def _on_ended(self, stamped: Stamped[EndedMessage]) -> None:
        node = self.roster.nodes.get(stamped.node)
        if node is not None:
            node.ended = True
            node.left = stamped.fact.left

    def _on_lost(self, stamped: Stamped[NodeLost]) -> None:
        node = self.roster.nodes.get(stamped.node)
        if node is not None:
            node.lose()
            self.roster.lost.append(stamped)
            self.ending.fence(self._at(stamped.t))

    def _on_fault(self, stamped: Stamped[FaultMessage]) -> None:
        if stamped.node in self.roster.nodes:
            self.roster.faults.append(stamped)

    def _on_finding(self, stamped: Stamped[Finding]) -> None:
        if stamped.fact.status in COUNTED:
            self.roster.findings.append(stamped.fact)

    # -- the end -----------------------------------------------------------------------------------

    def _on_failed(self, stamped: Stamped[FailureNoted]) -> None:
        self.roster.failed_t = stamped.t
        self.roster.failed_at = self._at(stamped.t)

    def _on_init_timeout(self, stamped: Stamped[InitTimeout]) -> None:
        self.roster.init_timeout_hit = True

    def _on_hang(self, stamped: Stamped[HangConcluded]) -> None:
        self.hang_watch.hang = stamped.fact.hang

    def _on_stop(self, stamped: Stamped[StopAsked]) -> None:
        self.roster.stop_reason = self.roster.stop_reason or stamped.fact.reason

    def _on_regrow(self, stamped: Stamped[RegrowBegun]) -> None:
        self.world.regrows = True

    def _on_ending(self, stamped: Stamped[EndingBegun]) -> None:
        self.roster.state = State.ENDING
        self.ending.grace = stamped.fact.grace
