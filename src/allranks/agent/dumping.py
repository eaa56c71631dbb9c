"""Python stacks by a signal: the last means, for ranks that neither answer nor can be read from outside.

The runner's handler (faulthandler, C) writes the stacks of all threads. Sent to the process, the signal runs it in
the main thread, and a C function that sleeps or polls there returns early (EINTR): the program goes on otherwise than
without us. So it goes to the thread of the runner that answers questions, which sleeps (agent/runner_recorder.py);
only where there is none, to the process, once, and it is said if the program moved by it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import AbstractSet, Dict, Optional

from allranks.protocol.node_names import NodeFiles
from allranks.protocol.samples import StackSample

from .files import names_in, open_left, size_of
from .native import position
from .observing import STACKS_SIGNAL, catches
from .processes import Process, send_signal, signal_mask

SECONDS = 2.0  # for the handler to write
MOVED = 0.2  # seconds after which a program that was interrupted is seen elsewhere
LIMIT = 64 << 10
TGKILL = {"x86_64": 234, "aarch64": 131}  # system calls by machine
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}  # the helper does not block these


def dump(ranks: Dict[int, Process], node_dir: str, signalled: AbstractSet[int]) -> Dict[int, StackSample]:
    """Take stacks by rank. Ranks in `signalled` have been signalled before and are not a second time."""
    files = NodeFiles(node_dir)
    dumps = {rank: _Dump(process, files.stacks(rank)) for rank, process in ranks.items()}
    for rank, one in dumps.items():
        one.begin(rank not in signalled)
    deadline = time.monotonic() + SECONDS
    while any(one.waits for one in dumps.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
        for one in dumps.values():
            one.check()
    if any(one.interrupted for one in dumps.values()):
        time.sleep(MOVED)
    return {rank: one.result() for rank, one in dumps.items()}


class _Dump:
    """One rank's."""

    def __init__(self, process: Process, path: str) -> None:
        self._process = process
        self._path = path
        self._start = size_of(path)
        self._size = -1
        self._before = position(process.pid)
        self._sent_to_process = False
        self._error = ""
        self.waits = False

    def begin(self, may_signal: bool) -> None:
        pid = self._process.pid
        if not catches(pid, STACKS_SIGNAL):
            self._error = "the program has no dump handler"
            return
        helper = helper_thread(pid)
        if helper is not None and _tgkill(pid, helper):
            self.waits = True
        elif may_signal:
            self.waits = self._sent_to_process = send_signal(self._process, STACKS_SIGNAL)
        else:
            self._error = "its stack was taken by a signal before, which is done once"

    def check(self) -> None:
        """See whether all is written."""
        if self.waits:
            size = size_of(self._path)
            self.waits = size == self._start or size != self._size
            self._size = size

    @property
    def interrupted(self) -> bool:
        """Whether the signal may have ended a call of the program."""
        return self._sent_to_process and bool(self._before.call)

    def result(self) -> StackSample:
        moved = ""
        if self.interrupted and position(self._process.pid) != self._before:
            moved = self._before.call
        stack = StackSample(signalled=self._sent_to_process, moved=moved)
        if self._error or self._size <= self._start:
            return stack._replace(error=self._error or "no stack within %g s" % SECONDS)
        text = _tail(self._path, self._start)
        if not self._sent_to_process:  # the thread that ran the handler is not the main one, which comes last
            text = text.replace("Current thread 0x", "Thread 0x")
        return stack._replace(text=text)


def helper_thread(pid: int) -> Optional[int]:
    """Find the thread that answers for a rank by the signals that it blocks: all but faults and the dump's own."""
    signals = set(signal.valid_signals()) - FAULTS - {signal.SIGKILL, signal.SIGSTOP, STACKS_SIGNAL}
    wanted = sum(1 << (int(number) - 1) for number in signals)
    threads = [int(name) for name in names_in("/proc/%d/task" % pid)]
    return next((t for t in threads if t != pid and signal_mask(pid, t, "SigBlk") == wanted), None)


def _tgkill(pid: int, thread: int) -> bool:
    number = TGKILL.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, pid, thread, int(STACKS_SIGNAL)) == 0


def _tail(path: str, start: int) -> str:
    with open(open_left(path), "rb") as file:
        file.seek(start)
        return file.read(LIMIT).decode("utf-8", "replace")
