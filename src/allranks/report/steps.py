"""Steps and rates, read from metrics lines or from logs by a pattern (pure)."""

from __future__ import annotations

import json
import re
from collections import deque

WINDOW = 20  # steps the rate is taken over
LINE_LIMIT = 64 << 10


class StepReader:
    """One rank's step and rate (steps a second over the last 20); both None until known."""

    def __init__(self, pattern: str | None) -> None:
        self._pattern = re.compile(pattern.encode()) if pattern else None
        self._seen: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._rest = {"metrics": b"", "log": b""}
        self.step: int | None = None

    @property
    def rate(self) -> float | None:
        """Steps a second."""
        if len(self._seen) < 2:
            return None
        (t0, s0), (t1, s1) = self._seen[0], self._seen[-1]
        return round((s1 - s0) / (t1 - t0), 3) if t1 > t0 and s1 > s0 else None

    def metrics(self, data: bytes, now: float) -> bool:
        """Bytes of the metrics file; True where they held a step."""
        found = False
        for line in self._lines("metrics", data):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            step = entry.get("step") if isinstance(entry, dict) else None
            if isinstance(step, int):
                t = entry.get("t")
                self._note(step, float(t) if isinstance(t, (int, float)) else now)
                found = True
        return found

    def log(self, data: bytes, now: float) -> bool:
        """Bytes of the log; True where the pattern found a step."""
        if self._pattern is None:
            return False
        found = False
        for line in self._lines("log", data):
            match = self._pattern.search(line)
            digits = (match[1] if match.re.groups else match[0]) if match else b""
            if digits and digits.isdigit():
                self._note(int(digits), now)
                found = True
        return found

    def _note(self, step: int, t: float) -> None:
        if self.step is not None and step < self.step:
            self._seen.clear()  # a restart
        self.step = step
        self._seen.append((t, step))

    def _lines(self, source: str, data: bytes) -> list[bytes]:
        lines, self._rest[source] = whole_lines(self._rest[source], data)
        return lines


class Recurrence:
    """Whether what ranks print matches a pattern, line by line."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern.encode())
        self._rest: dict[int, bytes] = {}

    def seen(self, rank: int, data: bytes) -> bool:
        """More of a rank's log."""
        lines, self._rest[rank] = whole_lines(self._rest.get(rank, b""), data)
        return any(self._pattern.search(line) for line in lines)


def whole_lines(rest: bytes, data: bytes) -> tuple[list[bytes], bytes]:
    """The lines that end in `data`, with what was left of an earlier one before it; and what is left now."""
    parts = re.split(rb"[\r\n]", rest + data)
    left = parts.pop()[-LINE_LIMIT:]
    return parts, left
