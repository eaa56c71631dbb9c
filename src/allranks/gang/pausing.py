"""When the controller itself did not run: its machine slept, or its process was stopped. Pure; clocks are arguments.

CLOCK_MONOTONIC stands still while a machine is suspended, CLOCK_BOOTTIME goes on (clock_gettime(2)). Neither is set by
anybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from allranks.diagnose.incident import Pause

LEAST = 5.0  # seconds; less is a busy machine, unless the lease is short


@dataclass(frozen=True)
class Instant:
    """The same moment on both clocks, in seconds. Where there is no clock that goes on asleep, both are the same."""

    monotonic: float
    boot: float


def pause_between(before: Instant, after: Instant, t: float, usual: float, lease: float) -> Pause | None:
    """What lay between two ticks that are `usual` seconds apart otherwise; `t` is unix seconds of the second."""
    least = min(LEAST, lease / 2)
    ran = after.monotonic - before.monotonic
    slept = after.boot - before.boot - ran
    stopped = max(0.0, ran - usual)
    if slept >= least:
        return Pause(t, round(slept + stopped, 1), slept=True)
    return Pause(t, round(stopped, 1), slept=False) if stopped >= least else None
