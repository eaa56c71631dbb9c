"""One way to wait, for all host tests: look until it is so, never sleep and hope."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 20.0, what: str = "") -> T:
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
