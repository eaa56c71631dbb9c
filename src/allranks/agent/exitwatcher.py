"""Sees how ranks end that another launcher has started, and that are not this agent's children.

Each tells its process when it starts (runner_launched.py). A pidfd says that it has ended; until its launcher has
reaped it, a second or a tenth of one later, /proc still has its exit status. Where the launcher is quicker, or the
kernel knows no pidfd (before 5.3), there is only the launcher's own word.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import time
from typing import Dict, List, Optional

from allranks.protocol.foreign import ReportMessage
from allranks.protocol.node_names import REPORT_SOCKET

from .attempt import RankAttempt
from .processes import Process, environment_of, read_process, stat_fields

PIDFD_OPEN = 434  # the same on every architecture
EXEC_TRIES = 50
EXEC_PAUSE = 0.002  # seconds between two tries to read a process that is in the midst of exec(2)


class ExitWatcher:
    """Follows processes through the agent's selector. `reports` is the socket that they know, by their environment:
    in a container of its own counting a number may be another's."""

    def __init__(self, selector: selectors.BaseSelector, reports: str) -> None:
        self._selector, self._proof = selector, ("%s=%s" % (REPORT_SOCKET, reports)).encode()
        self._attempt: Optional[RankAttempt] = None
        self._open: List[int] = []
        self.processes: Dict[int, Process] = {}

    def heard(self, report: ReportMessage, attempt: Optional[RankAttempt]) -> bool:
        """Take the word of a process that starts; tell whether it was one. The attempt learns how it ends."""
        if report.event != "launched":
            return False
        if attempt is not self._attempt:
            self.forget()
            self._attempt = attempt
        if report.pid is not None and _has_variable(report.pid, self._proof):
            fd = _pidfd(report.pid)
            if fd is not None:
                self._follow(fd, report.pid, report.rank)
        return True

    def _follow(self, fd: int, pid: int, rank: int) -> None:
        self._open.append(fd)
        process = read_process(pid)
        if process is not None:
            self.processes[rank] = process
        self._selector.register(fd, selectors.EVENT_READ, lambda: self._ended(fd, pid, rank))

    def _ended(self, fd: int, pid: int, rank: int) -> None:
        status = exit_status(pid)
        self._close(fd)
        self.processes.pop(rank, None)
        if status and self._attempt is not None:
            self._attempt.launched_rank_ended(rank, status)

    def _close(self, fd: int) -> None:
        self._open.remove(fd)
        self._selector.unregister(fd)
        os.close(fd)

    def forget(self) -> None:
        """Follow no process any more: the attempt is over."""
        self.processes.clear()
        for fd in list(self._open):
            self._close(fd)


def exit_status(pid: int) -> Optional[int]:
    """Return the wait status of a process that has ended and is not reaped; None where there is none."""
    fields = stat_fields(pid)
    if fields[:1] != ["Z"] or len(fields) < 50:
        return None
    return int(fields[49])


def _has_variable(pid: int, entry: bytes) -> bool:
    """Whether a process was started with this variable.

    It reports, then becomes the runner: in the midst of exec(2) its environment reads as empty.
    """
    for _ in range(EXEC_TRIES):
        entries = environment_of(pid)
        if entries != [b""] or read_process(pid) is None:
            return entry in entries
        time.sleep(EXEC_PAUSE)
    return False


def _pidfd(pid: int) -> Optional[int]:
    """os.pidfd_open came with Python 3.9."""
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        fd = int(ctypes.CDLL(None, use_errno=True).syscall(PIDFD_OPEN, pid, 0))
    except OSError:
        return None
    if fd < 0:
        return None
    return fd
