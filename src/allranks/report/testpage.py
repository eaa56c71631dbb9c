"""The page of `allranks test`: one file, nothing fetched from elsewhere, everything escaped (reads its templates).

Figures come from other machines: each list has an end, and what is not as expected is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from allranks.fabric.metric_rows import BandwidthRow, CollectiveRow, Failure, SuiteHang, WrongElement
from allranks.protocol.codec import decode_each
from allranks.runs.documents import StageResult, SuiteResult
from allranks.text import count_of, cut, format_ranks, format_rate, format_size_option, format_time

from .drawing import GridLine, PlotFrame
from .linkmaps import link_map
from .page import LINES, capped, findings_of, moment, render

# -- Where the lines of a plot stand -----------------------------------------------------------------------------------
# The template busbw.html draws it. Axes and words have the page's own colour, so that it reads in light and dark; lines
# differ in colour, dash and marker.

# Okabe and Ito's for the colour-blind, where they have a contrast of 3 on white and on black; then two more.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8578f", "#8a7000", "#6b7480")
DASHES = ("", "7 3", "2 3")
# Round, square, triangle, diamond: lines differ without their colour, too.
MARKERS = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "m-4 -4h8v8h-8Z",
    "m0 -5l5 9h-10Z",
    "m0 -5l5 5l-5 5l-5 -5Z",
)
FRAME = PlotFrame(84.0, 14.0, 500.0, 300.0)
LEGEND = 230.0
BELOW = 50.0  # for the axis of sizes
LINE = 20.0  # of the legend
MOST = 18  # lines
LONGEST = 26  # characters of a name in the legend
TICKS = 8
TINY = 1e-9  # seconds, bytes a second: less is not a measurement
HUGE = 1e24
MARGIN = 0.03  # of the width, left and right of the lines


@dataclass(frozen=True)
class Point:
    """One row: bytes, and bytes a second at the median; `low` and `high` are at the quartiles of time."""

    size: float
    median: float
    low: float
    high: float


def series(rows: Iterable[BandwidthRow]) -> dict[str, list[Point]]:
    """Give the points of each collective by size; where one ran with several numbers of ranks, of each of these."""
    by_name: dict[tuple[str, int], dict[float, Point]] = {}
    for row in rows:
        if 1 <= row.size < HUGE and TINY <= row.busbw < HUGE:
            points = by_name.setdefault((row.collective, row.ranks), {})
            points[row.size] = _point(row)
    several = len({ranks for _, ranks in by_name}) > 1
    return {
        f"{name}, {ranks} ranks" if several else name: [points[size] for size in sorted(points)]
        for (name, ranks), points in by_name.items()
    }


def _point(row: BandwidthRow) -> Point:
    if TINY < row.q1 <= row.median <= row.q3:
        return Point(row.size, row.busbw, row.busbw * row.median / row.q3, row.busbw * row.median / row.q1)
    return Point(row.size, row.busbw, row.busbw, row.busbw)


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: the ends of its values, where they lie on the page, and the values that have a tick."""

    least: float
    most: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Give the place of a value."""
        part = math.log(value / self.least) / math.log(self.most / self.least)
        return self.start + part * (self.end - self.start)


def sizes_axis(values: Sequence[float]) -> Axis:
    """Make the axis of payloads, with ticks at powers of 2, as many as fit."""
    low = math.floor(math.log2(min(values)))
    high = math.ceil(math.log2(max(values)))
    if low == high:
        low = max(0, low - 1)
        high += 1
    step = max(1, math.ceil((high - low) / TICKS))
    ticks = tuple(2.0**exponent for exponent in range(low, high + 1, step))
    room = MARGIN * FRAME.width
    return Axis(2.0**low, 2.0**high, FRAME.left + room, FRAME.right - room, ticks)


def rates_axis(values: Sequence[float]) -> Axis:
    """Make the axis of rates, with ticks at 1, 2 and 5, or at powers of ten where there are many of these."""
    least = min(values)
    most = max(values)
    low = math.floor(math.log10(least))
    high = math.ceil(math.log10(most))
    steps = (1.0, 2.0, 5.0) if high - low <= 3 else (1.0,)
    every = max(1, math.ceil((high - low) / TICKS))
    ticks = [step * 10.0**exponent for exponent in range(low, high + every + 1, every) for step in steps]
    first = max((tick for tick in ticks if tick <= least), default=ticks[0])
    last = min((tick for tick in ticks if tick >= most and tick > first), default=ticks[-1])
    return Axis(first, last, FRAME.bottom, FRAME.top, tuple(tick for tick in ticks if first <= tick <= last))


@dataclass(frozen=True)
class Marker:
    """The median of a size, and its quartiles."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True)
class PlotLine:
    """The measurements of a collective."""

    name: str
    label: str
    colour: str
    dash: str
    shape: str
    markers: list[Marker]


@dataclass(frozen=True)
class BandwidthPlot:
    """A drawing; `lines_left_out` are in the table alone."""

    height: float
    label: str
    sizes: list[GridLine]
    rates: list[GridLine]
    lines: list[PlotLine]
    lines_left_out: int
    width: float = FRAME.right + LEGEND
    frame: PlotFrame = FRAME
    row: float = LINE


def busbw_plot(rows: Iterable[BandwidthRow]) -> BandwidthPlot | None:
    """Lay out the plot; None where there is nothing to draw."""
    points_of = series(rows)
    if not points_of:
        return None
    shown = list(points_of.items())[:MOST]
    points = [point for _, line in shown for point in line]
    x = sizes_axis([point.size for point in points])
    y = rates_axis([rate for point in points for rate in (point.low, point.high)])
    lines = []
    for at, (name, line) in enumerate(shown):
        style = (COLOURS[at % len(COLOURS)], DASHES[at // len(COLOURS) % len(DASHES)], MARKERS[at % len(MARKERS)])
        lines.append(PlotLine(name, cut(name, LONGEST), *style, [_marker(name, point, x, y) for point in line]))
    return BandwidthPlot(
        max(FRAME.bottom + BELOW, FRAME.top + LINE * (len(shown) + 2)),
        "Bus bandwidth against size of " + ", ".join(line.label for line in lines),
        [GridLine(x.at(tick), format_size_option(int(tick))) for tick in x.ticks],
        [GridLine(y.at(tick), format_rate(tick)) for tick in y.ticks],
        lines,
        len(points_of) - len(shown),
    )


def _marker(name: str, point: Point, x: Axis, y: Axis) -> Marker:
    quartiles = f"{format_rate(point.low)} to {format_rate(point.high)}"
    title = f"{name}, {format_size_option(int(point.size))}: {format_rate(point.median)} ({quartiles})"
    return Marker(x.at(point.size), y.at(point.median), y.at(point.low), y.at(point.high), title)


ROWS = 500  # of a table
NODES = 64  # by name
NAME_LENGTH = 100
WORDS = {"pass": "PASS", "fail": "FAIL", "skip": "skip", "hang": "HANG"}
LEVELS = {"pass": "ok", "fail": "fail", "skip": "skipped", "hang": "fail"}


def test_page(result: SuiteResult) -> str:
    """Write the result of a test as HTML."""
    collectives = decode_each(CollectiveRow, result.collectives[:ROWS])
    bandwidth = decode_each(BandwidthRow, result.bandwidth)
    return render(
        "test.html",
        run=result.run or "test",
        passed=result.ok,
        summary=_summary(result),
        findings=findings_of(result.findings),
        tests=[_test(row) for row in collectives],
        plot=busbw_plot(bandwidth),
        rates=[_rate(row) for row in bandwidth[:ROWS]],
        links=link_map(result.links, [cut(node, NAME_LENGTH) for node in result.nodes]),
        stages=[_stage(stage) for stage in result.stages[:LINES]],
        statement=result.statement[:ROWS],
        environment=_environment(result),
    )


test_page.__test__ = False  # type: ignore[attr-defined]  # for pytest


def _summary(result: SuiteResult) -> str:
    parts = []
    if result.suite:
        parts.append(f"suite {result.suite}")
    if result.nodes:
        ranks = f"{count_of(result.ranks, 'rank')} on " if result.ranks else ""
        parts.append(ranks + count_of(len(result.nodes), "node"))
    if moment(result.started):
        parts.append(f"started {moment(result.started)}")
    return "; ".join([*parts, f"exit {result.exit}"])


# -- tests and rates -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TestRow:
    """A test, with all that is known of it where it did not pass."""

    name: str
    word: str
    level: str
    ranks: str
    seconds: str
    text: str
    details: list[str]


TestRow.__test__ = False  # type: ignore[attr-defined]


def _test(row: CollectiveRow) -> TestRow:
    details = []
    if row.late:
        details.append(f"rank {row.late.rank} came {format_time(row.late.seconds)} late")
    details += capped([_failure(failure) for failure in row.failures])
    if row.hang:
        details += _hang(row.hang)
    word = WORDS.get(row.status, row.status)
    ranks = str(row.ranks) if row.ranks else ""
    text = row.reason or row.detail
    return TestRow(row.test, word, LEVELS.get(row.status, "unknown"), ranks, format_time(row.seconds), text, details)


def _failure(failure: Failure) -> str:
    """Write `rank 1, round 0, float32, element 3, from rank 2: expected 5, found 0`."""
    if not isinstance(failure, WrongElement):
        return f"rank {failure.rank}: {failure.reason}"
    where = [f"rank {failure.rank}", f"round {failure.round}", failure.kind, f"element {failure.index}"]
    if failure.source is not None:
        where.append(f"from rank {failure.source}")
    return f"{', '.join(where)}: expected {failure.expected}, found {failure.found}"


def _hang(hang: SuiteHang) -> list[str]:
    lines = []
    for ranks, state in (
        (hang.arrived, "had arrived"),
        (hang.missing, "had not arrived"),
        (hang.silent, "gave no sign of life"),
    ):
        if ranks:
            lines.append(f"{state}: {format_ranks(ranks)}")
    for rank, calls in list(hang.stacks.items())[:LINES]:
        lines += [f"stack of rank {rank}:", *(f"    {line}" for line in capped(calls))]
    return lines


def _rate(row: BandwidthRow) -> list[str]:
    times = [format_time(seconds) for seconds in (row.median, row.q1, row.q3)]
    rates = [format_rate(rate) for rate in (row.algbw, row.busbw)]
    return [row.collective, format_size_option(row.size), str(row.ranks), *times, *rates, str(row.rounds)]


# -- stages, environment ---------------------------------------------------------------------------


@dataclass(frozen=True)
class StageRow:
    """A stage: its groups that failed by name, before those that passed."""

    name: str
    meaning: str
    failed: int
    passed: int
    left_out: int
    groups: list[tuple[str, bool, str]]  # names, whether it passed, time


def _stage(stage: StageResult) -> StageRow:
    groups = sorted(stage.groups, key=lambda group: group.ok)
    passed = sum(group.ok for group in groups)
    rows = []
    for group in groups[:ROWS]:
        seconds = "" if group.seconds is None else format_time(group.seconds)
        rows.append((_names(group.nodes), group.ok, seconds))
    left_out = max(0, len(groups) - ROWS)
    return StageRow(stage.name, stage.meaning, len(groups) - passed, passed, left_out, rows)


def _names(nodes: Sequence[str]) -> str:
    names = [cut(node, NAME_LENGTH) for node in nodes]
    if len(names) > NODES:
        return f"{names[0]}, {names[1]}, … {names[-1]} ({len(names)} nodes)"
    return ", ".join(names)


def _environment(result: SuiteResult) -> list[tuple[str, str]]:
    rows = (
        ("run", result.run),
        ("directory", result.directory),
        ("suite", result.suite),
        ("nodes", _names(result.nodes)),
        ("ranks", str(result.ranks or "")),
        ("started", moment(result.started)),
        ("exit", str(result.exit)),
    )
    return [(name, value) for name, value in rows if value]
