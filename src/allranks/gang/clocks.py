"""Clocks: offsets between this machine and a node, and pauses of the controller itself. Pure; times are arguments.

CLOCK_MONOTONIC stands still while a machine is suspended, CLOCK_BOOTTIME goes on (clock_gettime(2)). A person or
a program can set neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from allranks.diagnose.stragglers.lateness import ClockEstimate
from allranks.protocol.foreign import error_time
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.messages import ExitMessage, HelloMessage
from allranks.protocol.run_facts import LauncherPaused, Stamped

Kind = TypeVar("Kind")
LEAST = 5.0  # seconds; less is a busy machine, unless the lease is short
DRIFT = 0.05  # seconds that clocks may drift apart while an old best sample holds


class NodeClock:
    """`offset` is the node's clock minus ours, in seconds; the best of the samples with least delay."""

    def __init__(self) -> None:
        self.offset = 0.0
        self.delay: float | None = None

    def sample(self, sent: float, node_time: float, received: float) -> None:
        """Take a ping's answer: sent and received on our clock, answered at `node_time` on the node's.

        The offset lies between what both ends of the round trip say: where the one that was known does not, a clock
        has been set, and what was known is of no use."""
        delay = received - sent
        if delay < 0:
            return
        was_set = not node_time - received - DRIFT <= self.offset <= node_time - sent + DRIFT
        if self.delay is None or delay <= self.delay or was_set:
            self.delay = delay
            self.offset = node_time - (sent + received) / 2
        else:
            self.delay += 0.001  # drift: an old best sample slowly loses its weight

    @property
    def estimate(self) -> ClockEstimate | None:
        """How well it is known; None where it is not."""
        if self.delay is None:
            return None
        return ClockEstimate(self.offset, self.delay / 2)

    def facts(self) -> JsonObject:
        """Describe it as the checks read it."""
        return {"offset": round(self.offset, 4), "delay": round(self.delay or 0.0, 4)}

    def stamp(self, message: Kind, node: str, attempt: int, t: float) -> Stamped[Kind]:
        """Stamp a node's message with when that happened, by the controller's clock; it has come at `t`."""
        said = _time_of(message)
        return Stamped(node, t if said is None else said - self.offset, attempt, message)


def _time_of(message: object) -> float | None:
    """When it happened by the node's clock; None where the message does not say."""
    t: float | None = getattr(message, "t", None)
    if isinstance(message, HelloMessage):
        return message.died_t or t
    if isinstance(message, ExitMessage):
        raised_t = error_time(message.error)
        if raised_t is not None:
            return min(raised_t, t or raised_t)  # the program's own word is earlier than its reaping
    return t


@dataclass(frozen=True)
class Instant:
    """The same moment on both clocks, in seconds. Without a clock that goes on asleep, both are the same."""

    monotonic: float
    boot: float


def pause_between(before: Instant, after: Instant, usual: float, lease: float) -> LauncherPaused | None:
    """Return the pause between two ticks, else `usual` seconds apart, or None."""
    least = min(LEAST, lease / 2)
    ran = after.monotonic - before.monotonic
    slept = after.boot - before.boot - ran
    stopped = max(0.0, ran - usual)
    if slept >= least:
        return LauncherPaused(round(slept + stopped, 1), slept=True)
    if stopped >= least:
        return LauncherPaused(round(stopped, 1), slept=False)
    return None
