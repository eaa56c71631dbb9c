"""A pattern of the user's, matched in a process of its own: neither the loop nor the run ever waits for it.

Cheap where all is well: a copy of the bytes through a pipe, and one short line back. A pattern that takes longer than
SECONDS of processor time on one line is off from then on. So is one whose process can't be started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pkgutil
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from .matcher import REQUEST

SECONDS = 0.5  # of processor time for one line
WAITING = 8 << 20  # bytes that wait for a slow matcher; more are not looked at
DRAIN = 2.0  # seconds at the end of an attempt for what still waits
READ = 64 << 10


class Match(NamedTuple):
    """What a piece of a rank's log held: lines that matched, and the last number that the pattern found.

    `at` (monotonic seconds) and `t` (unix seconds) are when the piece came."""

    rank: int
    at: float
    t: float
    lines: int
    number: int | None


class Matching:
    """Feeds one pattern; `on_match` and `on_off` are called from the loop."""

    def __init__(
        self, option: str, pattern: str, on_match: Callable[[Match], None], on_off: Callable[[str], None]
    ) -> None:
        self._option = option
        self._pattern = pattern
        self._on_match = on_match
        self._on_off = on_off
        self._process: subprocess.Popen[bytes] | None = None
        self.unsent = bytearray()
        self._in = b""
        self._asked = 0
        self._answered = 0
        self._writing = False
        self.is_off = False

    def feed(self, rank: int, data: bytes, at: float, t: float) -> bool:
        """More of a rank's log; False where it is not looked at."""
        if self.is_off or len(self.unsent) > WAITING or not (self._process or self._start()):
            return False
        self._asked += 1
        self.unsent += REQUEST.pack(rank, at, t, len(data)) + data
        if not self._writing:
            self._write()
        return True

    def drain(self) -> None:
        """Wait a moment for the answers to all that was fed."""
        ends = time.monotonic() + DRAIN
        while self._process is not None and self._answered < self._asked and time.monotonic() < ends:
            assert self._process.stdin is not None and self._process.stdout is not None
            waits_for = select.poll()  # select(2) takes no descriptor above 1023
            waits_for.register(self._process.stdout, select.POLLIN)
            if self.unsent:
                waits_for.register(self._process.stdin, select.POLLOUT)
            ready = [number for number, _ in waits_for.poll(max(0.0, ends - time.monotonic()) * 1000)]
            answers = self._process.stdout.fileno() in ready
            if self._process.stdin.fileno() in ready:
                self._write()
            if answers:
                self._read()

    def close(self) -> None:
        """End its process."""
        process = self._process
        self._process = None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(process.stdout)
        loop.remove_writer(process.stdin)
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        process.wait()

    # -- its process -------------------------------------------------------------------------------

    def _start(self) -> bool:
        program = pkgutil.get_data(__package__, "matcher.py")
        try:
            assert program is not None
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", program.decode(), self._pattern, str(SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except (OSError, AssertionError) as error:
            self._off(f"its process could not be started ({error})")
            return False
        assert self._process.stdin is not None and self._process.stdout is not None
        for pipe in (self._process.stdin, self._process.stdout):
            os.set_blocking(pipe.fileno(), False)
        asyncio.get_running_loop().add_reader(self._process.stdout, self._read)
        return True

    def _write(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        loop = asyncio.get_running_loop()
        pipe = self._process.stdin
        try:
            while self.unsent:
                del self.unsent[: os.write(pipe.fileno(), memoryview(self.unsent)[:READ])]
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                loop.add_writer(pipe, self._write)
            return
        except OSError:
            self.unsent.clear()  # its end is seen by the reader
        if self._writing:
            self._writing = False
            loop.remove_writer(pipe)

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), READ)
        except BlockingIOError:
            return
        if not data:
            self._ended()
            return
        *answers, self._in = (self._in + data).split(b"\n")
        for answer in answers:
            rank, at, t, lines, number = answer.split()
            self._answered += 1
            last = None if number == b"-" else int(number)
            self._on_match(Match(int(rank), float(at), float(t), int(lines), last))

    def _ended(self) -> None:
        assert self._process is not None
        process = self._process
        process.kill()
        code = process.wait()
        self.close()
        slow = code == -signal.SIGPROF
        self._off(f"it took more than {SECONDS:g} s of processor time on one line" if slow else f"it ended ({code})")

    def _off(self, why: str) -> None:
        self.is_off = True
        self.unsent.clear()
        self._on_off(f"{self._option} {self._pattern!r} is off: {why}")
