"""Who is alive, found without asking allranks.

A run's ranks and all that they start keep the working directory of the launch (no program of the benchmarks
leaves it), so they are known from outside by its device and inode: a process can change its name, session,
parent and environment and clear its dumpable flag, and is still found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.bed import Bed

BOOT = b"ALLRANKS-BOOT"  # in the command line of agent, supervisor and relay


@dataclass(frozen=True)
class Alive:
    """A living process as the machine sees it."""

    pid: int
    on_machine: bool  # not in a host's namespace: the launcher, its ssh clients
    command: str


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def command_of(pid: int) -> str:
    """A process's command line, on one line."""
    return " ".join(_words(pid).decode(errors="replace").replace("\0", " ").split())[:120]


def fields_of(pid: int) -> list[str]:
    """/proc/PID/stat from the state on: [0] state, [1] parent, [11] user, [12] system ticks, [19] start."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def pids_in(directory: Path) -> list[int]:
    """Living processes whose working directory is this one (a zombie has none)."""
    wanted = os.stat(directory)
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            place = os.stat(f"/proc/{entry}/cwd")
        except OSError:
            continue
        if (place.st_ino, place.st_dev) == (wanted.st_ino, wanted.st_dev):
            found.append(int(entry))
    return found


def alive_in(directory: Path) -> list[Alive]:
    """The same, with where each is."""
    here = os.stat("/proc/self/ns/pid").st_ino
    found = []
    for pid in pids_in(directory):
        try:
            inside = os.stat(f"/proc/{pid}/ns/pid").st_ino
        except OSError:
            continue
        found.append(Alive(pid, inside == here, command_of(pid)))
    return found


def on_hosts(directory: Path) -> list[Alive]:
    """Ranks and their children on the hosts of a bed."""
    return [a for a in alive_in(directory) if not a.on_machine]


def is_boot(pid: int) -> bool:
    """Agent, supervisor or relay."""
    return BOOT in _words(pid)


def others(bed: Bed, directory: Path) -> list[Alive]:
    """What else is alive on hosts that are on: agents, supervisors, relays, shells, sshd sessions."""
    ours = set(pids_in(directory))
    return [
        Alive(p.pid, False, p.command[:120])
        for host in bed.hosts
        if host.is_on
        for p in host.pids()
        if p.state != "Z" and p.pid not in ours
    ]


def seconds_until(none_left: Callable[[], bool], since: float, limit: float) -> float | None:
    """Seconds (by time.time) from `since` until it held in two looks on end; None: not within `limit`."""
    while True:
        seen = time.time()
        if none_left() and none_left():
            return seen - since
        if seen - since > limit:
            return None
        time.sleep(0.01)
