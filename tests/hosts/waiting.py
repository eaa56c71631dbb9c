"""One way to wait, for all tests: look until it is so, never sleep and hope."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

BOUND = 400.0  # seconds, for all tests: what fails only because the machine is busy is no finding


def wait_until(condition: Callable[[], T], timeout: float = BOUND, what: str = "") -> T:
    """The first true value of `condition`; AssertionError that says what did not come."""
    end = time.monotonic() + timeout
    pause = 0.002
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"not so after {timeout:g} s: {what or condition!r} (last: {value!r})")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def stop_process(pid: int) -> None:
    """SIGSTOP, and wait until every thread has stopped: kill() returns before that."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: set(thread_states(pid)) == {"T"}, 60.0, f"process {pid} stopped")


def thread_states(pid: int) -> list[str]:
    """The state letter of each thread, as /proc has it."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return [stat.rpartition(")")[2].split()[0] for stat in stats]
