"""What else the machine does: waiting for quiet, and how much CPU others took during a sample."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.census import fields_of

QUIET = 0.2  # of all cores: above it somebody else is at work
TICK = os.sysconf("SC_CLK_TCK")
Times = dict[tuple[int, str], int]


def wait_for_quiet(patience: float) -> float:
    """Waits for the machine to be quiet, not for ever; gives the share of it that is in use."""
    end = time.monotonic() + patience
    while True:
        share = _busy(0.4)
        if share < QUIET or time.monotonic() > end:
            return share


def _busy(seconds: float) -> float:
    first = _cpu_times()
    time.sleep(seconds)
    second = _cpu_times()
    total = sum(second) - sum(first)
    idle = (second[3] + second[4]) - (first[3] + first[4])
    return 1.0 - idle / total if total else 0.0


def _cpu_times() -> list[int]:
    return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


class Others:
    """CPU taken by processes that are not below this one (the hosts of a bed are) and not the kernel's own."""

    def __init__(self) -> None:
        self._before = _others()
        self._began = time.monotonic()

    def cores(self) -> float:
        """How many cores they had on average; a little too much where a long one ended meanwhile."""
        seconds = time.monotonic() - self._began
        ticks = sum(max(0, now - self._before.get(key, 0)) for key, now in _others().items())
        return ticks / TICK / seconds


class Work:
    """CPU seconds (user and system) of all processes below this one from here on: a bed's hosts are among them.

    The time of one that ends goes to whoever waits for it, so the sum over the family is complete, but for
    those that left it (an ssh master of ansible) and what was not waited for.
    """

    def __init__(self) -> None:
        self._before = _family()

    def seconds(self) -> float:
        """Until now."""
        return (_family() - self._before) / TICK


def _family() -> int:
    """Ticks of this process's children, living and dead, and theirs."""
    found = {int(entry): fields_of(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()}
    below: dict[str, list[int]] = {}
    for pid, fields in found.items():
        if fields:
            below.setdefault(fields[1], []).append(pid)
    own = os.getpid()
    total, todo = sum(int(word) for word in found[own][13:15]), [*below.get(str(own), [])]
    while todo:
        pid = todo.pop()
        total += sum(int(word) for word in found[pid][11:15])
        todo += below.get(str(pid), [])
    return total


def _others() -> Times:
    """User and system time, that of dead children included, by pid and start."""
    parents: dict[int, int] = {}
    times: dict[int, tuple[str, int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = fields_of(int(entry))
            if fields:
                parents[int(entry)] = int(fields[1])
                times[int(entry)] = (fields[19], sum(int(word) for word in fields[11:15]))
    return {(pid, start): ticks for pid, (start, ticks) in times.items() if not _is_ours(pid, parents)}


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    """True also for the kernel's threads, whose work is mostly ours."""
    while pid > 1:
        if pid in (2, os.getpid()):
            return True
        pid = parents.get(pid, 0)
    return False
