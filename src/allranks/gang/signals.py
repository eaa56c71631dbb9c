"""One signal that arrives on several ways is one signal: when SIGUSR1 and SIGUSR2 are passed on to the ranks. Pure.

`scancel --full` reaches the batch script and every step, an srun that is signalled repeats it to its tasks, and each
node's task tells the controller by itself (Slurm 22.05: `_handle_signal_container` of slurmstepd/req.c,
`_srun_signal_mgr` of srun_job.c). Every rank must get it once.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTROLLER = ""  # as the source of a signal; nodes have their names
SAME_SECONDS = 1.0  # between the first and the last way of one signal to the controller, or of its repetition to a node
LATE_SECONDS = 30.0  # how much later than the first node another one may get it (Slurm's MessageTimeout is 10 s)


@dataclass
class _Arrival:
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
        self._arrivals: list[_Arrival] = []

    def is_new(self, name: str, source: str, now: float) -> bool:
        """Whether this one is to be passed on; `now` in seconds, `source` is CONTROLLER or a node's name."""
        self._arrivals = [a for a in self._arrivals if now - a.first <= LATE_SECONDS]
        for arrival in self._arrivals:
            if arrival.name == name and arrival.joins(source, now):
                arrival.last[source] = now
                return False
        self._arrivals.append(_Arrival(name, now, {source: now}))
        return True
