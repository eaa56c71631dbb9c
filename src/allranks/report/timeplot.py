"""Where a timeline's rows, bars and labels stand in a drawing: a row a node, thinner ones for its ranks (pure).

Nothing happens for most of a long run, so the axis is not linear: a gap without events takes at most as much room
as its logarithm, is shaded, and says how long it is. The template timeline.html draws it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from allranks.findings import Where
from allranks.text import cut, format_elapsed

from .drawing import GridLine, PlotFrame
from .timeline import DONE, ENDED, FAILED, Moment, Timeline, TimelineRow, choose_rows, is_at

LEFT = 170.0
WIDTH = 900.0
TOP = 62.0
BELOW = 14.0  # the last row
NODE = 20.0  # height of a node's row
RANK = 15.0
MOST = 160  # rows
LINEAR = 20.0  # seconds that a run may last to have a linear axis
GAP = 4.0  # seconds without events that take their own room
TICK = 74.0  # between two labels of the axis
NAMED_GAP = 60.0  # wide enough for words
LETTER = 6.0  # mean width
NAME = 22  # characters of a name
LEVELS = 3  # of labels of moments
COLOURS = {
    "connecting": "#9aa3b2",
    "ready": "#c9b458",
    "rendezvous": "#e69f00",
    "running": "#a9b8c9",
    "silent": "#b8578f",
    "lost": "#b42318",
    "started": "#56b4e9",
    "initialised": "#009e73",
}
WORDS = {
    "connecting": "connecting",
    "ready": "ready, preflight checks",
    "rendezvous": "rendezvous check",
    "running": "node has ranks",
    "started": "rank started",
    "initialised": "process group initialised",
    "silent": "node is silent",
    "lost": "node is lost",
}
HANG = "#b8578f"
MOMENTS = {DONE: "#1a7f4b", FAILED: "#d92d20", ENDED: "#6b7480"}
# A tick for done, a stop for what allranks ended, a cross for failed: they differ without colour.
SHAPES = {DONE: "m-4 0l3 3.5l6 -7", ENDED: "m0 -4v8", FAILED: "m-4 -4l8 8m0 -8l-8 8"}


class Gap(NamedTuple):
    """A time without events."""

    x: float
    width: float
    text: str


class Label(NamedTuple):
    """Words at a moment; without text where they have no room."""

    x: float
    text: str
    title: str = ""
    colour: str = "currentColor"
    top: float = 0.0
    before: bool = False  # to the left of the moment


class Bar(NamedTuple):
    """A state of a node or rank."""

    x: float
    width: float
    colour: str
    title: str


class EndMark(NamedTuple):
    """The end of a node or rank."""

    x: float
    kind: str
    shape: str
    colour: str
    title: str


@dataclass(frozen=True)
class PlotRow:
    """A node, or one of its ranks; without bars it never started."""

    name: str
    label: str
    is_node: bool
    is_culprit: bool
    top: float
    height: float
    bars: list[Bar]
    exits: list[EndMark]


@dataclass(frozen=True)
class TimelinePlot:
    """A drawing. `rows_left_out` counts those of too many."""

    height: float
    label: str
    gaps: list[Gap]
    ticks: list[GridLine]
    moments: list[Label]
    rows: list[PlotRow]
    rows_left_out: int
    frame: PlotFrame
    width: float = LEFT + WIDTH + 20


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


NOWHERE = Where()  # no rank is at fault


def legend(line: Timeline) -> list[tuple[str, str]]:
    """Give (colour, words) of the states that occur."""
    states = {span.state for row in line.rows for span in row.spans}
    return [(COLOURS[state], WORDS[state]) for state in COLOURS if state in states]


def timeline_plot(line: Timeline, culprit: Where = NOWHERE) -> TimelinePlot | None:
    """Lay out a timeline; None without rows."""
    rows, left_out = choose_rows(line, culprit, MOST)
    if not rows:
        return None
    changes = {span.start for row in line.rows for span in row.spans}
    changes |= {line.start, line.end, *(moment.t for moment in line.moments)}
    scale = Scale([*changes, *(span.end for row in line.rows for span in row.spans)])
    plot_rows = []
    top = TOP
    for row in rows:
        plot_rows.append(_row(row, top, scale, line.start, is_at(row, culprit)))
        top += plot_rows[-1].height + 5
    label = f"Timeline of {len(rows)} nodes and ranks over {format_elapsed(line.end - line.start)}"
    gaps = [_gap(scale, start, end) for start, end in scale.gaps]
    ticks = _ticks(sorted(changes), line.start, scale)
    frame = PlotFrame(LEFT, TOP, WIDTH, top - TOP)
    moments = _moments(line.moments, scale)
    return TimelinePlot(top + BELOW, label, gaps, ticks, moments, plot_rows, left_out, frame)


def _gap(scale: Scale, start: float, end: float) -> Gap:
    x = scale.at(start)
    width = scale.at(end) - x
    return Gap(x, width, f"{format_elapsed(end - start)} without events" if width > NAMED_GAP else "")


def _ticks(times: Sequence[float], start: float, scale: Scale) -> list[GridLine]:
    ticks: list[GridLine] = []
    for t in times:
        x = scale.at(t)
        if t == start or not ticks or x - ticks[-1].at >= TICK:
            ticks.append(GridLine(x, f"+{format_elapsed(t - start)}"))
    return ticks


def _moments(moments: Iterable[Moment], scale: Scale) -> list[Label]:
    """Label what concerns all, where there is room for words on one of three levels."""
    labels = []
    ends = [-math.inf] * LEVELS
    for moment in moments:
        x = scale.at(moment.t)
        colour = HANG if moment.kind.startswith("hang") else MOMENTS.get(moment.kind, "currentColor")
        free = [level for level, end in enumerate(ends) if x > end]
        level = free[0] if free else 0
        end = x + LETTER * len(moment.text)
        before = end > LEFT + WIDTH
        if free:
            ends[level] = math.inf if before else end + 8
        labels.append(Label(x, moment.text if free else "", moment.text, colour, 12.0 + 12 * level, before))
    return labels


def _row(row: TimelineRow, top: float, scale: Scale, start: float, is_culprit: bool) -> PlotRow:
    is_node = row.rank is None
    name = f"{row.role} {row.node}".lstrip() if is_node else f"rank {row.rank}"
    bars = []
    for span in row.spans:
        x = scale.at(span.start)
        title = (
            f"{name}: {WORDS[span.state]}, +{format_elapsed(span.start - start)} to +{format_elapsed(span.end - start)}"
        )
        bars.append(Bar(x, max(1.5, scale.at(span.end) - x), COLOURS[span.state], title))
    exits = []
    for moment in row.moments:
        kind = moment.kind if moment.kind in SHAPES else FAILED
        title = f"{name} {moment.text}, +{format_elapsed(moment.t - start)}"
        exits.append(EndMark(scale.at(moment.t), moment.kind, SHAPES[kind], MOMENTS[kind], title))
    height = (NODE if is_node else RANK) - 5
    return PlotRow(name, cut(name, NAME), is_node, is_culprit, top, height, bars, exits)
