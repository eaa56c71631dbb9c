"""Tracebacks of ranks that only lost a peer, as one line each: the live view is about the rank that failed (pure).

So are C++ frames, of which torch prints a dozen with each of its errors: the first stands for all of them. torch's
warning of a hostname that has no name server comes with each connection of healthy runs: one line says so for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

HEADER = "Traceback (most recent call last):"
HOLD = 1.0  # seconds that a traceback waits for its last line
MOST = 200  # lines of a traceback that wait
WIDEST = 4096  # characters of such a line
ADDED = "   (it lost a peer, its traceback is in the log)"
FRAMES = "  (frames of C++ are in the log)"
HARMLESS = "torch cannot look up the hostname of a peer, which is harmless"
_HOSTNAME = "[c10d] The hostname of the client socket cannot be retrieved"  # torch socket.cpp
_FRAME = re.compile(r"frame #(\d{1,4}): ")  # c10/util/Backtrace.cpp
_PREFIX = re.compile(r"\[rank\d{1,7}\]: ?")

Who = tuple[str, int]


@dataclass
class _Traceback:
    """A traceback without its last line yet, since when it waits."""

    since: float
    lines: list[str] = field(default_factory=list)


class VictimShortener:
    """Lines of ranks in, lines to display out; those of one rank keep their order."""

    def __init__(self) -> None:
        self._waiting: dict[Who, _Traceback] = {}
        self._warned: set[Who] = set()

    def take(self, who: Who, text: str, now: float) -> list[str]:
        """Take a line, and return what can be displayed of its rank."""
        body = _PREFIX.sub("", text, count=1)
        waiting = self._waiting.get(who)
        if waiting is None:
            frame = _FRAME.match(body)
            if frame is not None:
                return [] if int(frame[1]) else [FRAMES]
            if body.startswith("[W") and _HOSTNAME in body:
                is_first = who not in self._warned
                self._warned.add(who)
                return [HARMLESS] if is_first else []
            if body != HEADER:
                return [text]
            self._waiting[who] = _Traceback(now, [text])
            return []
        if body == HEADER:
            self._waiting[who] = _Traceback(now, [text])
            return waiting.lines
        if len(waiting.lines) >= MOST or len(text) > WIDEST:
            del self._waiting[who]
            return [*waiting.lines, text]
        if not body.strip() or body[0].isspace():
            waiting.lines.append(text)
            return []
        del self._waiting[who]
        if _is_of_victim(body):
            return [text + ADDED]
        return [*waiting.lines, text]

    def due(self, now: float, is_end: bool = False) -> Iterator[tuple[Who, str]]:
        """Yield the lines that have waited for too long, or all of them; also where the clock was set back."""
        for who, waiting in list(self._waiting.items()):
            if is_end or not 0 <= now - waiting.since < HOLD:
                del self._waiting[who]
                for text in waiting.lines:
                    yield who, text


def _is_of_victim(exception: str) -> bool:
    # Imported late: a run in which nothing fails needs none of the signatures.
    from allranks.diagnose.signatures import lost_peer

    kind, _, words = exception.partition(": ")
    return lost_peer(kind, words) is not None
