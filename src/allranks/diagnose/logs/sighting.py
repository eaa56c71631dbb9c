"""What the rows and the tracebacks of a log's lines tell: sightings, in the order of the log (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..signatures import EXCEPTION, Role, Row, row_of
from .lines import Line

UNNAMED = Row(
    "exception",
    "program-exception",
    Role.WEAK,
    "CPython: an uncaught exception",
    ("",),
    r"(?!)",
    0.6,
    rule="exception",
)


@dataclass(frozen=True)
class Sighting:
    """A row seen in a line. `groups` are what its pattern caught; `frame` is the place that a traceback tells."""

    row: Row
    line: Line
    groups: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""  # an exception's type
    frame: str = ""  # file:line in function
    modules: tuple[str, ...] = ()  # files of its traceback
    order: int = 0

    @property
    def rank(self) -> int | None:
        """The rank that the text names as its own, else the rank whose line it is."""
        return self.line.rank


class Reader:
    """Takes lines in order, one log after the other; keeps the frames of each rank's newest traceback."""

    def __init__(self) -> None:
        self.sightings: list[Sighting] = []
        self._frames: dict[tuple[str, int | None], list[str]] = {}
        self._order = 0

    def feed(self, lines: Iterable[Line]) -> None:
        """Lines that the scan has kept."""
        for line in lines:
            self._order += 1
            self._take(line)

    def _take(self, line: Line) -> None:
        stream = (line.file, line.rank)
        text = line.text
        if text.lstrip().startswith("Traceback (most recent call last)"):
            self._frames[stream] = []
            return
        frame = _frame(text)
        if frame:
            self._frames.setdefault(stream, []).append(frame)
            return
        raised = EXCEPTION.match(text.strip())
        found = row_of(text)
        if found is None and raised is None:
            return
        frames = self._frames.get(stream, []) if raised else []
        row, groups = (found[0], found[1].groupdict()) if found else (UNNAMED, {})
        self.sightings.append(
            Sighting(
                row,
                line,
                {k: v for k, v in groups.items() if v},
                raised["type"] if raised else "",
                _own(frames),
                tuple(f.split('"')[0] for f in frames[-12:]),
                self._order,
            )
        )


def _frame(text: str) -> str:
    """`train.py", line 41, in step` of a traceback's line."""
    at = text.find('File "')
    return text[at + 6 :].strip() if at >= 0 and '", line ' in text[at:] else ""


def _own(frames: list[str]) -> str:
    """The innermost frame of the user's own code, else the innermost."""
    own = [
        f
        for f in frames
        if not any(part in f for part in ("site-packages/", "dist-packages/", "/lib/python3", "<frozen"))
    ]
    chosen = (own or frames)[-1:]
    if not chosen:
        return ""
    file, _, rest = chosen[0].partition('", line ')
    number, _, function = rest.partition(", in ")
    within = f" in {function.strip()}" if function and "<module>" not in function else ""
    return f"{file.rsplit('/', 1)[-1]}:{number.strip().rstrip(',')}{within}"
