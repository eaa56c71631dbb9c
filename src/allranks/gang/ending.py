"""Ending: the first failure, a stop or the last exit ends every rank on every node, and all output is fetched. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from allranks.diagnose.hangs.compared import UNLIKE_CALLS, UNLIKE_SHAPES, odd_call, read_called
from allranks.diagnose.words import ABORT, name_by_node
from allranks.findings import Finding, Where
from allranks.protocol.messages import DrainedMessage, EndedMessage, FaultMessage
from allranks.protocol.orders import EndOrder
from allranks.protocol.run_facts import EndingBegun, FailureNoted, InitTimeout, Stamped, StopAsked
from allranks.text import plural

from .members import NodeState
from .roster import Roster
from .states import Action, AttemptOver, Send, State, Tick

UNLIKE_REMEDY = (
    "Give all ranks tensors of one shape and type there. `--debug` (TORCH_DISTRIBUTED_DEBUG=DETAIL) compares calls"
)
END_PATIENCE = 8.0  # seconds a node may take beyond the grace to say that it has ended its ranks
DRAIN_PATIENCE = 60.0
FENCE = 2.0  # seconds beyond the grace in which a lost node's own agent, if it lives, ends its ranks: lease and beat


class Ending:
    """The phase that every attempt ends with. Every other phase fails the gang through it."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.grace = 0.0
        self._deadline = 0.0
        self._fence_at = 0.0  # until then a lost node may still run ranks

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self._fence_at = 0.0

    def resume(self, now: float) -> None:
        """Go on with an end that another controller has begun: the nodes have their whole time again."""
        self._deadline = now + self.grace + END_PATIENCE

    def fail(self, now: float) -> list[Action]:
        """End all ranks because of the first failure; a later one changes nothing."""
        roster = self.roster
        first = self.note_failure(now)
        if roster.state is State.ENDING:
            return first + self.check(now)  # the time that a stop gave to save holds
        return first + self.end(now, roster.spec.limits.grace, "failure")

    def note_failure(self, now: float) -> list[Action]:
        """Keep when the first failure came; nothing for a later one."""
        roster = self.roster
        if roster.failed_t is not None:
            return []
        roster.failed_t = roster.event_t
        roster.failed_at = now
        return [roster.stamp(FailureNoted())]

    def refuse(self, failures: Iterable[Finding], now: float) -> list[Action]:
        """Keep what forbids the start, and end."""
        notes: list[Action] = [self.roster.add_finding(failure) for failure in failures]
        return notes + self.fail(now)

    def fail_init_timeout(self, now: float) -> list[Action]:
        """End the gang because the time for its start is over."""
        self.roster.init_timeout_hit = True
        seconds = round(now - self.roster.start_at, 1)
        return [self.roster.stamp(InitTimeout(seconds)), *self.fail(now)]

    def end(self, now: float, grace: float, reason: str) -> list[Action]:
        """Ask every node to end its ranks; again with a shorter grace where that is under way already."""
        roster = self.roster
        again = roster.state is State.ENDING
        if roster.state is State.OVER or (again and now + grace >= self._deadline - END_PATIENCE):
            return []
        roster.state = State.ENDING
        self.grace = grace
        self._deadline = now + grace + END_PATIENCE
        order = EndOrder(grace, reason, reason == "failure" and self._may_be_unlike())
        started = sum(rank.is_running for rank in roster.ranks())
        actions: list[Action] = [roster.stamp(EndingBegun(reason, grace, started))]
        for node in roster.nodes.values():
            if node.is_there:
                actions.append(Send(node.name, order))
        return actions + self.check(now)

    def _may_be_unlike(self) -> bool:
        """Whether ranks that called unlike each other may be behind a failure: none was killed, and no node is lost."""
        roster = self.roster
        killed = any(end.fact.signal not in (None, ABORT) for end in roster.exits)
        return roster.initialised_t is not None and not roster.lost and not killed and not roster.testing

    def fence(self, now: float) -> None:
        """Wait for the ranks of a lost node: they may live until its own agent has ended them."""
        self._fence_at = max(self._fence_at, now + self.roster.spec.limits.grace + FENCE)

    def check(self, now: float) -> list[Action]:
        """Whether the attempt is over everywhere."""
        roster = self.roster
        if roster.spec.tries_again and not roster.stop_reason and now < self._fence_at:
            return []
        waits_for_ends = now < self._deadline

        def is_awaited(node: NodeState) -> bool:
            return node.is_there and (not node.drained if node.ended else waits_for_ends)

        if now < self._deadline + DRAIN_PATIENCE and roster.any_node("end", is_awaited):
            return []
        roster.state = State.OVER
        return [*self._compare_calls(), AttemptOver()]

    def _compare_calls(self) -> list[Action]:
        called = {rank: groups for end in self.roster.exits for rank, groups in end.fact.calls.items()}
        odd = odd_call(read_called(called))
        if odd is None:
            return []
        nodes = self.roster.node_of_rank()
        ranks = sorted(odd.culprits)
        who = "ranks have"
        if ranks:
            who = f"{name_by_node(ranks, lambda rank: nodes.get(rank, ''))} {plural(len(ranks), 'has', 'have')}"
        message = f"{who} called a collective unlike the others: {odd.message}"
        if self.roster.failed_t is None:
            message += ". It came to an end, so what ranks received there may be wrong"
        where = Where(node=nodes.get(ranks[0]), rank=ranks[0]) if len(ranks) == 1 else Where()
        check = UNLIKE_SHAPES if odd.cause == "collective-shape-mismatch" else UNLIKE_CALLS
        return [self.roster.add_finding(Finding(check, "warn", message, UNLIKE_REMEDY, where))]

    # -- events ------------------------------------------------------------------------------------

    def on_stop(self, stamped: Stamped[StopAsked], now: float) -> list[Action]:
        """End the ranks because the user wants it; a second call can only be shorter."""
        roster = self.roster
        asked = stamped.fact
        roster.stop_reason = roster.stop_reason or asked.reason
        return [stamped, *self.end(now, asked.grace, asked.reason)]

    def on_tick_of_start(self, stamped: Stamped[Tick], now: float) -> list[Action]:
        """End a start that takes too long."""
        if not self.roster.is_past_init_limit(now):
            return []
        return self.fail_init_timeout(now)

    def on_ended(self, stamped: Stamped[EndedMessage], now: float) -> list[Action]:
        """Keep that a node has ended its ranks, with what it could not end."""
        roster = self.roster
        node = roster.nodes[stamped.node]
        is_running = roster.state is State.RUNNING
        if node.ended or (is_running and stamped.fact.attempt != roster.attempt):
            return []
        node.ended = True
        node.left = stamped.fact.left
        if node.state != "lost":
            node.state = "ended"
        actions: list[Action] = [stamped]
        if stamped.fact.reason == "lease":
            over = FaultMessage("lease-over", "ended its ranks: its lease was over")
            actions.append(roster.add_fault(roster.stamp(over, node.name, stamped.t)))
        return actions + (self.fail(now) if is_running else self.check(now))

    def on_drained(self, stamped: Stamped[DrainedMessage], now: float) -> list[Action]:
        """All its output is here."""
        node = self.roster.nodes[stamped.node]
        node.drained = True
        node.outputs = stamped.fact.outputs or None
        return self.check(now)
