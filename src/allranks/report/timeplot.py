"""Where a timeline's rows, bars and labels stand in a drawing: a row a node, thinner ones for its ranks (pure).

Nothing happens for most of a long run, so the axis is not linear: a gap without events takes at most as much room
as its logarithm, is shaded, and says how long it is. The template timeline.html draws it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from allranks.findings import Where
from allranks.text import format_elapsed

from .timeline import DONE, ENDED, FAILED, UNCLEAN, Moment, Timeline, TimelineRow, choose_rows, is_at

LEFT = 170.0
WIDTH = 900.0
TOP = 62.0
NODE = 15.0  # height of a node's row
RANK = 10.0
BETWEEN = 5.0
MOST = 160  # rows
LINEAR = 20.0  # seconds that a run may last to have a linear axis
GAP = 4.0  # seconds without events that take their own room
TICK = 74.0  # between two labels of the axis
NAMED_GAP = 60.0  # wide enough for words
LETTER = 6.0  # mean width
LEVELS = 3  # of labels of moments
# Of each state its colour and what it is.
STATES = {
    "connecting": ("#9aa3b2", "connecting"),
    "ready": ("#c9b458", "ready, preflight checks"),
    "rendezvous": ("#e69f00", "rendezvous check"),
    "running": ("#a9b8c9", "node has ranks"),
    "silent": ("#b8578f", "node is silent"),
    "lost": ("#b42318", "node is lost"),
    "started": ("#56b4e9", "rank started"),
    "initialised": ("#009e73", "process group initialised"),
}
HANG = "#b8578f"
MOMENTS = {DONE: "#1a7f4b", FAILED: "#d92d20", ENDED: "#6b7480"}
# A tick for done, a stop for what allranks ended, a cross for failed: they differ without colour.
MARKS = {
    DONE: (MOMENTS[DONE], "m-4 0l3 3.5l6 -7"),
    ENDED: (MOMENTS[ENDED], "m0 -4v8"),
    FAILED: (MOMENTS[FAILED], "m-4 -4l8 8m0 -8l-8 8"),
    UNCLEAN: (MOMENTS[FAILED], "m-4 -4l8 8m0 -8l-8 8"),
}


class Label(NamedTuple):
    """Words at a moment; without text where they have no room."""

    x: float
    text: str
    title: str = ""
    colour: str = "currentColor"
    top: float = 0.0
    before: bool = False  # to the left of the moment


class Scale:
    """Time to place: linear between events, gaps compressed."""

    def __init__(self, times: Iterable[float]) -> None:
        self._times = sorted(set(times)) or [0.0]
        if len(self._times) == 1:
            self._times.append(self._times[0] + 1.0)
        linear = self._times[-1] - self._times[0] <= LINEAR
        self._at = [0.0]
        self.gaps: list[tuple[float, float]] = []
        for before, after in pairwise(self._times):
            seconds = after - before
            room = seconds
            if seconds > GAP and not linear:
                room = GAP * (1 + math.log(seconds / GAP))
            if room < seconds / 2:
                self.gaps.append((before, after))
            self._at.append(self._at[-1] + room)

    def at(self, t: float) -> float:
        """Give the place of a moment, in units of the drawing."""
        times = self._times
        first = min(max(bisect_right(times, t) - 1, 0), len(times) - 2)
        part = (t - times[first]) / (times[first + 1] - times[first])
        place = self._at[first] + min(max(part, 0.0), 1.0) * (self._at[first + 1] - self._at[first])
        return LEFT + WIDTH * place / self._at[-1]


class TimelinePlot:
    """A drawing of these rows; `rows_left_out` counts those of too many. timeline.html has the shapes."""

    states = STATES
    marks = MARKS
    between = BETWEEN
    left = LEFT
    top = TOP
    width = WIDTH

    def __init__(self, line: Timeline, rows: Sequence[TimelineRow], rows_left_out: int, culprit: Where) -> None:
        changes = {span.start for row in line.rows for span in row.spans}
        changes |= {line.start, line.end, *(moment.t for moment in line.moments)}
        self.start = line.start
        self.rows = rows
        self.rows_left_out = rows_left_out
        self.scale = Scale([*changes, *(span.end for row in line.rows for span in row.spans)])
        self.bottom = TOP + sum(self.height_of(row) + BETWEEN for row in rows)
        self.label = f"Timeline of {len(rows)} nodes and ranks over {format_elapsed(line.end - line.start)}"
        self.ticks = self._ticks(sorted(changes))
        self.moments = self._moments(line.moments)
        self._culprit = culprit

    def height_of(self, row: TimelineRow) -> float:
        """Give the height of a row's bars."""
        return NODE if row.rank is None else RANK

    def is_culprit(self, row: TimelineRow) -> bool:
        """Tell whether a row is that of the rank at fault."""
        return is_at(row, self._culprit)

    def since(self, t: float) -> str:
        """Write when something was: `+12.0 s`."""
        return f"+{format_elapsed(t - self.start)}"

    def gap_words(self, start: float, end: float) -> str:
        """Write how long nothing happened, where the drawing has room for it."""
        if self.scale.at(end) - self.scale.at(start) <= NAMED_GAP:
            return ""
        return f"{format_elapsed(end - start)} without events"

    def _ticks(self, times: Sequence[float]) -> list[Label]:
        ticks: list[Label] = []
        for t in times:
            x = self.scale.at(t)
            if t == self.start or not ticks or x - ticks[-1].x >= TICK:
                ticks.append(Label(x, self.since(t)))
        return ticks

    def _moments(self, moments: Iterable[Moment]) -> list[Label]:
        """Label what concerns all, where there is room for words on one of three levels."""
        labels = []
        ends = [-math.inf] * LEVELS
        for moment in moments:
            x = self.scale.at(moment.t)
            colour = HANG if moment.kind.startswith("hang") else MOMENTS.get(moment.kind, "currentColor")
            free = [level for level, end in enumerate(ends) if x > end]
            level = free[0] if free else 0
            end = x + LETTER * len(moment.text)
            before = end > LEFT + WIDTH
            if free:
                ends[level] = math.inf if before else end + 8
            labels.append(Label(x, moment.text if free else "", moment.text, colour, 12.0 + 12 * level, before))
        return labels


def legend(line: Timeline) -> list[tuple[str, str]]:
    """Give (colour, words) of the states that occur."""
    states = {span.state for row in line.rows for span in row.spans}
    return [shown for state, shown in STATES.items() if state in states]


def timeline_plot(line: Timeline, culprit: Where) -> TimelinePlot | None:
    """Lay out a timeline; None without rows."""
    rows, left_out = choose_rows(line, culprit, MOST)
    return TimelinePlot(line, rows, left_out, culprit) if rows else None
