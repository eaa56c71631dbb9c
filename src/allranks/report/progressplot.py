"""Step times of all ranks as a heatmap, lateness and goodput as lines, over the time of a run (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from allranks.runs.documents import ProgressRow
from allranks.text import format_elapsed, format_percent, format_time

from .drawing import GridLine, PlotFrame

LEFT = 90.0
WIDTH = 800.0
TOP = 22.0
BELOW = 22.0
MOST_COLUMNS = 120
MOST_ROWS = 48
ROW = 12.0  # height
LINE_HEIGHT = 110.0
TICKS = 6
# How many times the run's median step a step took, from which a colour stands: light to dark, and readable on both
# backgrounds (Okabe and Ito's blue to vermilion).
LEVELS = (
    (0.0, "#9ecae8", "up to the median step"),
    (1.1, "#56b4e9", "over 1.1 times"),
    (1.5, "#e69f00", "over 1.5 times"),
    (2.0, "#d55e00", "over 2 times"),
    (4.0, "#8c2d04", "over 4 times the median step"),
)


class HeatLayer(NamedTuple):
    """All cells of one colour, as parts of an SVG path."""

    colour: str
    words: str
    path: list[str]


class Heatmap(NamedTuple):
    """Step time by rank; a row may stand for several ranks, with the slowest of them."""

    frame: PlotFrame
    height: float
    layers: list[HeatLayer]
    labels: list[GridLine]
    ticks: list[GridLine]
    attempts: list[float]
    median: str
    ranks_a_row: int
    width: float = LEFT + WIDTH + 20


class LinePlot(NamedTuple):
    """A figure over time. `path` is an SVG path, a part a point."""

    name: str
    frame: PlotFrame
    height: float
    path: list[str]
    levels: list[GridLine]
    ticks: list[GridLine]
    latest: str
    width: float = LEFT + WIDTH + 20


class ProgressPlots(NamedTuple):
    """What can be drawn of a history; None for what it does not have."""

    heatmap: Heatmap | None
    lateness: LinePlot | None
    goodput: LinePlot | None


def progress_plots(rows: Sequence[ProgressRow]) -> ProgressPlots | None:
    """Draw a history; None where there is nothing to draw."""
    moments = sorted(rows, key=lambda row: row.t)
    if len(moments) < 2 or moments[-1].t <= moments[0].t:
        return None
    late = [(one.t, max(known)) for one in moments if (known := [s for s in one.lateness if s is not None])]
    good = [(one.t, one.goodput) for one in moments if one.goodput is not None]
    start, end = moments[0].t, moments[-1].t
    plots = ProgressPlots(
        _heatmap(moments),
        _line("lateness of the latest rank", late, start, end, max((v for _, v in late), default=0.0), format_time),
        _line("goodput", good, start, end, 1.0, format_percent),
    )
    if not any(plots):
        return None
    return plots


# -- the heatmap -------------------------------------------------------------------------------------------------------


def _heatmap(moments: Sequence[ProgressRow]) -> Heatmap | None:
    thinned = _thinned(moments)
    ranks = max(len(moment.steps) for moment in thinned)
    times = [_step_times(before, after) for before, after in pairwise(thinned)]
    measured = [seconds for column in times for seconds in column if seconds is not None]
    if not measured:
        return None
    usual = median(measured)
    each = math.ceil(ranks / MOST_ROWS)
    rows = math.ceil(ranks / each)
    start, end = thinned[0].t, thinned[-1].t
    frame = PlotFrame(LEFT, TOP, WIDTH, rows * ROW)
    paths: list[list[str]] = [[] for _ in LEVELS]
    for (before, after), column in zip(pairwise(thinned), times, strict=True):
        x, right = _at(before.t, start, end), _at(after.t, start, end)
        for row in range(rows):
            slowest = [seconds for seconds in column[row * each : (row + 1) * each] if seconds is not None]
            if slowest:
                level = _level(max(slowest) / usual)
                paths[level].append(f"M{x:.1f} {TOP + row * ROW:.1f}h{right - x:.2f}v{ROW - 1:.0f}h-{right - x:.2f}z")
    every = max(1, math.ceil(rows / 16))
    labels = [GridLine(TOP + row * ROW + 9, _ranks(row, each, ranks)) for row in range(0, rows, every)]
    breaks = [_at(after.t, start, end) for before, after in pairwise(thinned) if after.attempt != before.attempt]
    layers = [HeatLayer(LEVELS[at][1], LEVELS[at][2], path) for at, path in enumerate(paths) if path]
    return Heatmap(frame, frame.bottom + BELOW, layers, labels, _ticks(start, end), breaks, format_time(usual), each)


def _thinned(moments: Sequence[ProgressRow]) -> list[ProgressRow]:
    """Leave out moments evenly, so that the columns are few; the last stays."""
    every = math.ceil((len(moments) - 1) / MOST_COLUMNS)
    kept = list(moments[::every])
    if kept[-1] is not moments[-1]:
        kept.append(moments[-1])
    return kept


def _step_times(before: ProgressRow, after: ProgressRow) -> list[float | None]:
    """Return the seconds a step of each rank that both moments have; None across attempts and where none was done."""
    seconds: list[float | None] = [None] * min(len(before.steps), len(after.steps))
    if before.attempt != after.attempt:
        return seconds
    for rank, (first, last) in enumerate(zip(before.steps, after.steps, strict=False)):
        if first is not None and last is not None and last > first:
            seconds[rank] = (after.t - before.t) / (last - first)
    return seconds


def _level(ratio: float) -> int:
    return max(at for at, (least, _, _) in enumerate(LEVELS) if ratio >= least)


def _ranks(row: int, each: int, ranks: int) -> str:
    first = row * each
    last = min(ranks, first + each) - 1
    return f"rank {first}" if last == first else f"ranks {first}-{last}"


# -- lines -------------------------------------------------------------------------------------------------------------


def _line(
    name: str,
    points: Sequence[tuple[float, float]],
    start: float,
    end: float,
    most: float,
    write: Callable[[float], str],
) -> LinePlot | None:
    """Draw values over time between 0 and `most`; None for fewer than two."""
    if len(points) < 2 or most <= 0:
        return None
    frame = PlotFrame(LEFT, TOP, WIDTH, LINE_HEIGHT)
    places = [
        f"{_at(t, start, end):.1f} {frame.bottom - LINE_HEIGHT * min(value / most, 1.0):.1f}" for t, value in points
    ]
    levels = [GridLine(frame.bottom - LINE_HEIGHT * part, write(most * part)) for part in (0.0, 0.5, 1.0)]
    path = ["M" + places[0], *(f"L{place}" for place in places[1:])]
    return LinePlot(name, frame, frame.bottom + BELOW, path, levels, _ticks(start, end), write(points[-1][1]))


def _at(t: float, start: float, end: float) -> float:
    return LEFT + WIDTH * (t - start) / (end - start)


def _ticks(start: float, end: float) -> list[GridLine]:
    seconds = [(end - start) * part / TICKS for part in range(TICKS + 1)]
    return [GridLine(_at(start + one, start, end), f"+{format_elapsed(one)}") for one in seconds]
