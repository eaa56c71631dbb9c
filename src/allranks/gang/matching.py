"""Patterns of the user over what ranks print. The package `regex` gives up a match that takes too long.

Python's own `re` may take for ever on one line, and holds the interpreter's lock meanwhile.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

from allranks.errors import UsageError
from allranks.settings import RunSpec

SECONDS = 0.5  # of processor time: for one line, and for pieces in a row
SHARE = 0.25  # of the time, beyond that: what comes meanwhile is not looked at
LINE = 4 << 10  # bytes of a line that are looked at
MOST_DIGITS = 18
LINE_END = re.compile(rb"[\r\n]")


class Match(NamedTuple):
    """What a piece of a rank's log held."""

    lines: int  # that matched
    number: int | None  # the last that the pattern found


def require_patterns(spec: RunSpec) -> None:
    """Raise UsageError where the settings have a pattern, and this Python has no `regex`."""
    named = {"--step-pattern": spec.output.step_pattern, "--hang-pattern": spec.limits.hang_pattern}
    named |= {f"ready of {role.name}": role.ready for role in spec.launch.roles if role.ready.startswith("output:")}
    named |= {f"--fail-on {rule}": rule for rule in spec.recovery.fail_on if rule.startswith("output:")}
    option = next((option for option, pattern in named.items() if pattern), None)
    if option is not None and find_spec("regex") is None:
        raise UsageError(
            f"{option} needs the package regex, which {sys.executable} does not have\n"
            "hint: pip install regex (or allranks[patterns])"
        )


class Matching:
    """One pattern over the logs of all ranks. It is off once a line takes too long: `on_off` hears why."""

    def __init__(self, option: str, pattern: str, on_off: Callable[[str], None]) -> None:
        import regex  # imported late: few runs have a pattern

        self._words = f"{option} {pattern!r}"
        self._on_off = on_off
        self._pattern = regex.compile(os.fsencode(pattern))
        self._rests: dict[int, bytes] = {}  # of the last line of each rank
        self._left = SECONDS
        self._at = time.monotonic()
        self._is_off = False

    def feed(self, rank: int, data: bytes) -> Match | None:
        """Look at more of a rank's log; None where it is not looked at."""
        now = time.monotonic()
        self._left = min(SECONDS, self._left + SHARE * (now - self._at))
        self._at = now
        if self._is_off or self._left <= 0:
            self._rests.pop(rank, None)
            return None
        *lines, rest = LINE_END.split(self._rests.get(rank, b"") + data)
        self._rests[rank] = rest[:LINE]
        began = time.thread_time()
        match = self._look_at(lines)
        self._left -= time.thread_time() - began
        return match

    def _look_at(self, lines: list[bytes]) -> Match | None:
        count = 0
        number = None
        for line in lines:
            try:
                match = self._pattern.search(line[:LINE], timeout=SECONDS)
            except TimeoutError:
                self._is_off = True
                self._rests.clear()
                self._on_off(f"{self._words} is off: it took more than {SECONDS:g} s of processor time on one line")
                return None
            if match is not None:
                count += 1
                digits = (match.group(1) if self._pattern.groups else match.group(0)) or b""
                if digits.isdigit() and len(digits) <= MOST_DIGITS:
                    number = int(digits)
        return Match(count, number)
