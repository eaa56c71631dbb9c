"""What the kernel shows of a rank's process while it runs: its main thread has ended, or it is another program now.

Nothing is sent to the process and nothing in it is touched.
"""

from __future__ import annotations

import os
import signal
import time
from typing import List, Optional, Sequence

from allranks.protocol.foreign import ReportMessage

from .processes import Process, command_line, read_process, signal_masks

# agent/runner.py catches it; exec resets the handlers of a process. macOS, which starts no ranks, has no SIGRTMIN.
STACKS_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 7
STACKS_FILE = 960  # agent/runner.py: its file descriptor, closed by exec
GONE_SAMPLES = 2  # a main thread that has ended is seen so for an instant at every end
BECOME_LIMIT = 3  # programs that a rank has become; more are not reported


class Observed:
    """One rank. `argv` is what it was started with; `sample` once a second."""

    def __init__(self, rank: int, process: Process, argv: Sequence[str]) -> None:
        self._rank = rank
        self._process = process
        self._argv = list(argv)
        self._runner = next((at for at, word in enumerate(argv) if os.path.basename(word) == "runner.py"), None)
        self._gone = 0
        self._programs: List[str] = []

    def sample(self) -> Optional[ReportMessage]:
        """Report what has changed since the last call: `main-gone`, or `became` (by exec) a program."""
        now = read_process(self._process.pid)
        if now is None or now.start != self._process.start:
            return None
        if now.state == "Z":
            self._gone += 1
            if self._gone == GONE_SAMPLES:
                return ReportMessage("main-gone", self._rank, time.time())
            return None
        program = self._other_program()
        if program is None or program in self._programs or len(self._programs) == BECOME_LIMIT:
            return None
        self._programs.append(program)
        return ReportMessage("became", self._rank, time.time(), program=program)

    def _other_program(self) -> Optional[str]:
        """Return the name of the program that replaced the runner's by exec; None while it is the runner's.

        A program may change its command line (setproctitle) and close files, but only exec does that and resets
        the signal handlers too."""
        if self._runner is None:
            return None
        words = command_line(self._process.pid)
        if not words or self._argv[self._runner] in words:
            return None
        plain = self._argv[: self._runner] + self._argv[self._runner + 1 :]
        if words[1:] == plain[1:]:  # what the runner cannot run, it leaves to the plain interpreter
            return None
        pid = self._process.pid
        if catches_stacks_signal(pid) or os.path.lexists("/proc/%d/fd/%d" % (pid, STACKS_FILE)):
            return None
        return program_name(words)


def program_name(words: List[str]) -> str:
    """Name a program without its arguments, which may hold secrets: `bash`, `python3 x.py`, `python3 -m package`."""
    name = os.path.basename(words[0])
    if name.startswith("python"):
        if words[1:2] == ["-m"]:
            return " ".join([name, *words[1:3]])
        if words[1:] and not words[1].startswith("-"):
            return "%s %s" % (name, os.path.basename(words[1]))
    return name[:80]


def catches_stacks_signal(pid: int) -> bool:
    """Whether a process has a handler for it; by default the signal would end it."""
    return bool(signal_masks(pid, pid).get("SigCgt", 0) & (1 << (STACKS_SIGNAL - 1)))
