"""Resuming: a gang goes on from the log of its run, which another controller has written. Pure.

A fold over the facts: the gang handles what happens, here is taken what has happened. Ranks that were started run, and
nothing is ordered: their agents will say hello, and tell what is not in the log. `tests/gang/test_gang.py` compares the
fold with the gang that wrote the log after each step of each of its scripts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

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
)

from .changing_world import ChangingWorld
from .ending import Ending
from .hangwatch import HangWatch
from .members import NodeState
from .roster import Roster
from .spares import SPARE_UNUSED
from .states import State

OF_RANKS = (StartedMessage, RankEntered, RankInitialised, RankDeparted, RankLeaving, ExitMessage)
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

    def resume(self, facts: Iterable[Stamped[Fact]], now: float, t: float) -> None:
        """Take the facts of a run up to now; `now` and `t` as in `Gang.handle`."""
        self._now = now
        self._t = t
        self.roster.is_adopted = True
        self.roster.state = State.RUNNING
        for stamped in facts:
            self._take_of_attempt(stamped)
            node = self.roster.nodes.get(stamped.node)
            if node is not None:
                self._take_of_node(stamped, node)
                self._take_of_rank(stamped, node)
        for node in self.roster.nodes.values():
            node.node_dir = UNKNOWN
            if node.state != "lost":
                node.state = "silent"
        if self.roster.state is State.ENDING:
            self.ending.resume(now)

    def _at(self, t: float) -> float:
        """When that was by the clock of the limits."""
        return self._now - max(0.0, self._t - t)

    def _take_of_attempt(self, stamped: Stamped[Fact]) -> None:
        roster = self.roster
        match stamped.fact:
            case AttemptStart():
                self._begin_attempt(stamped.attempt or 0, stamped.t)
            case SuitePassed():
                roster.testing = False
            case PlanMade() as plan:
                self._deal(plan)
            case GateProved(address=address, port=port):
                roster.master_addr = address
                roster.master_port = port
            case RankInitialised(limit=limit):
                roster.note_limit(limit)
            case AllInitialised():
                roster.initialised_t = stamped.t
            case Finding() as finding if finding.status in COUNTED:
                roster.findings.append(finding)
            case FailureNoted():
                roster.failed_t = stamped.t
                roster.failed_at = self._at(stamped.t)
            case InitTimeout():
                roster.init_timeout_hit = True
            case HangConcluded(hang=hang):
                self.hang_watch.hang = hang
            case StopAsked(reason=reason):
                roster.stop_reason = roster.stop_reason or reason
            case RegrowBegun():
                self.world.regrows = True
            case EndingBegun(grace=grace):
                roster.state = State.ENDING
                self.ending.grace = grace
            case RetryDecided(verdict=verdict):
                roster.remember_verdict(verdict)

    def _begin_attempt(self, attempt: int, t: float) -> None:
        roster = self.roster
        roster.attempt = attempt
        roster.begin_attempt(self._at(t))
        roster.state = State.RUNNING
        self.hang_watch.begin_attempt()
        self.world.begin_attempt()
        for node in roster.nodes.values():
            node.begin_attempt()
            node.state = "connecting"

    def _deal(self, plan: PlanMade) -> None:
        for name, ranks in plan.dealt.items():
            node = self.roster.nodes.get(name)
            own = range(ranks.start, ranks.start + 1) if self.roster.has_one_process else ranks
            if node is not None:
                node.take_ranks(own)

    def _take_of_node(self, stamped: Stamped[Fact], node: NodeState) -> None:
        roster = self.roster
        match stamped.fact:
            case EndedMessage(left=left):
                node.ended = True
                node.left = left
            case NodeLost() as lost:
                node.lose()
                roster.lost.append(Stamped(node.name, stamped.t, stamped.attempt, lost))
                self.ending.fence(self._at(stamped.t))
            case FaultMessage() as fault:
                roster.faults.append(Stamped(node.name, stamped.t, stamped.attempt, fault))

    def _take_of_rank(self, stamped: Stamped[Fact], node: NodeState) -> None:
        fact = stamped.fact
        rank = node.ranks.get(fact.rank) if isinstance(fact, OF_RANKS) else None
        if rank is None:
            return
        match fact:
            case StartedMessage(pid=pid):
                rank.start(pid, stamped.t)
            case RankEntered() | RankDeparted():
                rank.entered = True
            case RankInitialised():
                rank.initialise(stamped.t)
            case RankLeaving():
                rank.departure.take(fact, stamped.t, self._at(stamped.t))
            case ExitMessage():
                end = Stamped(node.name, stamped.t, stamped.attempt, fact._replace(pid=rank.pid))
                rank.take_exit(end, self._at(stamped.t))
                self.roster.exits.append(end)
