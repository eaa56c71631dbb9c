"""Work that may take long, in a process of its own with a limit of time: whoever waits for it, waits so long at most.

The child is a fork: it begins at once and has what the work needs. It is ended, with all that it has started, when its
time is over, when whoever waits is interrupted, and when the parent dies.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from allranks.agent.files import write_all
from allranks.agent.processes import PR_SET_PDEATHSIG, prctl
from allranks.errors import AllranksError

Result = TypeVar("Result")
READ = 1 << 20


class OutOfTime(Exception):
    """The limit was reached; `seconds` is the limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not ready within {seconds:g} s")
        self.seconds = seconds


class WorkFailed(Exception):
    """The work raised something else than an AllranksError, or its process was killed."""


def in_child(work: Callable[[], Result], seconds: float) -> Result:
    """Return what `work` returns, which must be picklable; raise its AllranksError, OutOfTime or WorkFailed."""
    read_end, write_end = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(read_end)
        os.close(write_end)
        raise WorkFailed(f"no process could be started: {error.strerror}") from None
    if pid == 0:
        _work(work, write_end, parent)
    os.close(write_end)
    try:
        data = _read(read_end, seconds)
    finally:
        os.close(read_end)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # with all that it has started
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)  # it may not have had the time to lead a group
        _, status = os.waitpid(pid, 0)
    result: Result = _given(data, status)
    return result


def _read(pipe: int, seconds: float) -> bytes:
    ends = time.monotonic() + seconds
    parts: list[bytes] = []
    readable = select.poll()  # select(2) takes no descriptor above 1023, and a controller of 400 nodes has more
    readable.register(pipe, select.POLLIN)
    while True:
        left = ends - time.monotonic()
        if left <= 0 or not readable.poll(left * 1000):
            raise OutOfTime(seconds)
        part = os.read(pipe, READ)
        if not part:
            return b"".join(parts)
        parts.append(part)


def _given(data: bytes, status: int) -> Any:
    try:
        result, error = pickle.loads(data)  # of our own process
    except Exception:
        by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        raise WorkFailed(f"its process was killed by signal {by}" if by else "its process ended") from None
    if isinstance(error, AllranksError):
        raise error
    if error is not None:
        raise WorkFailed(str(error))
    return result


def _work(work: Callable[[], object], pipe: int, parent: int) -> NoReturn:
    """In the child: never returns."""
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            write_all(pipe, _outcome(work))
    finally:
        os._exit(0)


def _outcome(work: Callable[[], object]) -> bytes:
    try:
        return pickle.dumps((work(), None))
    except AllranksError as error:
        return pickle.dumps((None, error))
    except Exception as error:
        return pickle.dumps((None, f"{type(error).__name__}: {error}"))
