"""One signal that arrives on several ways is one signal: when SIGUSR1 and SIGUSR2 are passed on to the ranks. Pure.

`scancel --full` reaches the batch script and every step, an srun that is signalled repeats it to its tasks, and each
node's task tells the controller by itself (Slurm 22.05: `_handle_signal_container` of slurmstepd/req.c,
`_srun_signal_mgr` of srun_job.c). Every rank must get it once.
"""

from __future__ import annotations

from dataclasses import dataclass

from allranks.protocol.orders import SignalOrder
from allranks.protocol.run_facts import PlainNote, SignalPassed, Stamped

from .members import NodeState
from .roster import Roster
from .saving import Saving
from .states import Action, Send, UserSignal

CONTROLLER = ""  # as the source of a signal; nodes have their names
SAME_SECONDS = 1.0  # between the first and the last way of one signal to the controller, or of its repetition to a node
LATE_SECONDS = 30.0  # how much later than the first node another one may get it (Slurm's MessageTimeout is 10 s)


@dataclass
class _PassedOn:
    """A signal that has been passed on: when it came first, and when last to each source."""

    name: str
    first: float
    last: dict[str, float]

    def joins(self, source: str, now: float) -> bool:
        """Whether the same signal has now come to `source` too."""
        before = self.last.get(source)
        if before is not None:
            return source != CONTROLLER and now - before <= SAME_SECONDS
        age = now - self.first
        to_nodes = any(name != CONTROLLER for name in self.last)
        return age <= SAME_SECONDS or (source != CONTROLLER and to_nodes and age <= LATE_SECONDS)


class SignalWays:
    """Remember which signals came to whom, for as long as another way of the same may still be under way."""

    def __init__(self) -> None:
        self._arrivals: list[_PassedOn] = []

    def is_new(self, name: str, source: str, now: float) -> bool:
        """Whether this one is to be passed on; `now` in seconds, `source` is CONTROLLER or a node's name."""
        self._arrivals = [a for a in self._arrivals if now - a.first <= LATE_SECONDS]
        for arrival in self._arrivals:
            if arrival.name == name and arrival.joins(source, now):
                arrival.last[source] = now
                return False
        self._arrivals.append(_PassedOn(name, now, {source: now}))
        return True


class UserSignals:
    """Passes SIGUSR1 and SIGUSR2 on to the ranks, remembers those of the present attempt, and has the ranks save."""

    def __init__(self, roster: Roster, saving: Saving) -> None:
        self.roster = roster
        self.saving = saving
        self._ways = SignalWays()
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self._passed_on: list[SignalOrder] = []
        self._before = 0  # in this attempt, by the controller before this one

    def missed(self, node: NodeState, count: int) -> list[Action]:
        """Signals for a node's ranks that were lost with its old channel; `count` is what the node has passed on."""
        if self.roster.is_adopted and not self._passed_on:
            self._before = max(self._before, count)
        return [Send(node.name, signal) for signal in self._passed_on if signal.order > count]

    def on_user_signal(self, stamped: Stamped[UserSignal], now: float) -> list[Action]:
        """SIGUSR1 or SIGUSR2 goes to every rank, once.

        Before the ranks run it would have to wait, and then end those that handle it later.
        """
        roster = self.roster
        name, source = stamped.fact
        if not self._ways.is_new(name, source, now):
            return []
        running = [rank for rank in roster.processes() if rank.is_running]
        if roster.testing or not running:
            where = f"to {source}'s task" if source else "to the controller"
            return [roster.stamp(PlainNote(f"SIG{name} came {where} while no rank ran: no rank got it"))]
        signal = SignalOrder(roster.attempt, self._before + len(self._passed_on) + 1, name)
        self._passed_on.append(signal)
        passed = SignalPassed(f"SIG{name}", len(running), source or None)
        sent: list[Action] = [Send(n.name, signal) for n in roster.nodes.values() if not n.gone]
        return [roster.stamp(passed), *sent, *self.saving.ask(now, f"SIG{name}")]
