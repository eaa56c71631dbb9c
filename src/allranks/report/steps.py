"""Steps and rates, read from metrics lines; what a pattern finds in logs is handed in (pure)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from allranks.agent.foreign import number, whole
from allranks.protocol.jsontext import DecodeError, read_object

WINDOW = 20  # steps the rate is taken over
LINE_LIMIT = 64 << 10


class StepReader:
    """One rank's step and rate (steps a second over the last 20); both None until known."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._rest = b""
        self.step: int | None = None

    @property
    def rate(self) -> float | None:
        """Steps a second."""
        if len(self._seen) < 2:
            return None
        (t0, s0) = self._seen[0]
        (t1, s1) = self._seen[-1]
        return round((s1 - s0) / (t1 - t0), 3) if t1 > t0 and s1 > s0 else None

    def metrics(self, data: bytes, now: float, on_refused: Callable[[str], None]) -> bool:
        """Bytes of the metrics file; True where they held a step. `on_refused` is told why a line can't be read."""
        found = False
        for line in self._lines(data):
            if not line.strip():
                continue
            try:
                entry = read_object(line, LINE_LIMIT)
            except DecodeError as error:
                on_refused(str(error))
                continue
            step = whole(entry.get("step"))
            if step is not None:
                t = number(entry.get("t"))
                self.note(step, t if t is not None else now)
                found = True
        return found

    def note(self, step: int, t: float) -> None:
        """A step that was seen at a time (unix seconds)."""
        if self.step is not None and step < self.step:
            self._seen.clear()  # a restart
        self.step = step
        self._seen.append((t, step))

    def _lines(self, data: bytes) -> list[bytes]:
        lines, self._rest = whole_lines(self._rest, data)
        return lines


def whole_lines(rest: bytes, data: bytes) -> tuple[list[bytes], bytes]:
    """The lines that end in `data`, with what was left of an earlier one before it; and what is left now."""
    parts = re.split(rb"[\r\n]", rest + data)
    left = parts.pop()[-LINE_LIMIT:]
    return parts, left
