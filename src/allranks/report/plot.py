"""A plot as SVG text, to stand in a page: bus bandwidth against size, both axes logarithmic (pure).

No script, no style sheet, nothing fetched. Axes and words have the page's own colour, so that it reads in light and
dark; lines differ in colour, dash and marker. Names are escaped and cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from allranks.text import format_rate, format_size_option

# Okabe and Ito's for the colour-blind, where they have a contrast of 3 on white and on black; then two more.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8578f", "#8a7000", "#6b7480")
DASHES = ("", "7 3", "2 3")
LEFT, TOP, WIDTH, HEIGHT, LEGEND = 84.0, 14.0, 500.0, 300.0, 230.0
BELOW = 50.0  # for the axis of sizes
LINE = 20.0  # of the legend
MOST = 18  # lines
LONGEST = 26  # characters of a name in the legend
TICKS = 8
TINY = 1e-9  # seconds, bytes a second: less is no measurement
MARGIN = 0.03  # of the width, left and right of the lines


@dataclass(frozen=True)
class Point:
    """One row: bytes, and bytes a second at the median; `low` and `high` are at the quartiles of time."""

    size: float
    median: float
    low: float
    high: float


def number(value: object) -> float | None:
    """A finite number of a usual size, else None: what another machine wrote may be anything."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e24 else None


def series(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """The points of each collective by size; where one ran with several numbers of ranks, of each of these."""
    by_name: dict[tuple[str, str], dict[float, Point]] = {}
    for row in rows:
        found = _point(row)
        if found:
            key = (str(row.get("collective")), str(row.get("ranks")))
            by_name.setdefault(key, {})[found.size] = found
    several = len({ranks for _, ranks in by_name}) > 1
    return {
        f"{name}, {ranks} ranks" if several else name: [points[size] for size in sorted(points)]
        for (name, ranks), points in by_name.items()
    }


def _point(row: Mapping[str, Any]) -> Point | None:
    size, busbw, *times = (number(row.get(key)) for key in ("size", "busbw", "median", "q1", "q3"))
    if not size or not busbw or size < 1 or busbw < TINY:
        return None
    median, q1, q3 = times
    if median and q1 and q3 and TINY < q1 <= median <= q3:
        return Point(size, busbw, busbw * median / q3, busbw * median / q1)
    return Point(size, busbw, busbw, busbw)


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: the ends of its values, where they lie on the page, and the values that are marked."""

    least: float
    most: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """The place of a value."""
        part = math.log(value / self.least) / math.log(self.most / self.least)
        return self.start + part * (self.end - self.start)


def sizes_axis(values: Sequence[float]) -> Axis:
    """Of payloads: marked at powers of 2, as many as fit."""
    least, most = min(values), max(values)
    low, high = math.floor(math.log2(least)), math.ceil(math.log2(most))
    low, high = (max(0, low - 1), high + 1) if low == high else (low, high)
    step = max(1, math.ceil((high - low) / TICKS))
    marks = tuple(2.0**e for e in range(low, high + 1) if (e - low) % step == 0)
    room = MARGIN * WIDTH
    return Axis(2.0**low, 2.0**high, LEFT + room, LEFT + WIDTH - room, marks)


def rates_axis(values: Sequence[float]) -> Axis:
    """Of rates: marked at 1, 2 and 5, or at powers of ten where there are many of these."""
    least, most = min(values), max(values)
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    steps = (1.0, 2.0, 5.0) if high - low <= 3 else (1.0,)
    every = max(1, math.ceil((high - low) / TICKS))
    marks = [m * 10.0**e for e in range(low, high + every + 1, every) for m in steps]
    first = max((m for m in marks if m <= least), default=marks[0])
    last = min((m for m in marks if m >= most and m > first), default=marks[-1])
    return Axis(first, last, TOP + HEIGHT, TOP, tuple(m for m in marks if first <= m <= last))


def busbw_plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """The SVG element; empty where there is nothing to draw."""
    found = series(rows)
    if not found:
        return ""
    shown = dict(list(found.items())[:MOST])
    points = [point for line in shown.values() for point in line]
    x = sizes_axis([p.size for p in points])
    y = rates_axis([v for p in points for v in (p.low, p.high)])
    height = max(TOP + HEIGHT + BELOW, TOP + LINE * (len(shown) + 2))
    width = LEFT + WIDTH + LEGEND
    said = "Bus bandwidth against size of " + ", ".join(_cut(name) for name in shown)
    parts = [
        f'<svg class="plot" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="currentColor" aria-label="{escape(said)}">',
        *_grid(x, y),
    ]
    for at, (name, line) in enumerate(shown.items()):
        parts += [*_line(at, name, line, x, y), *_legend(at, name)]
    if len(shown) < len(found):
        more = f"and {len(found) - len(shown)} more, in the table"
        parts.append(_text(LEFT + WIDTH + 20, TOP + LINE * (len(shown) + 0.7), more))
    return "\n".join([*parts, "</svg>"])


def _text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _grid(x: Axis, y: Axis) -> list[str]:
    """Frame, lines at the marks, what they mean."""
    bottom, right = TOP + HEIGHT, LEFT + WIDTH
    faint = 'stroke="currentColor" stroke-opacity="0.15"'
    parts = [f'<rect x="{LEFT:g}" y="{TOP:g}" width="{WIDTH:g}" height="{HEIGHT:g}" fill="none" '
             'stroke="currentColor" stroke-opacity="0.4"/>']  # fmt: skip
    for mark in x.ticks:
        at = x.at(mark)
        parts.append(f'<path d="M{at:.1f} {TOP:g}V{bottom:g}" {faint}/>')
        parts.append(_text(at, bottom + 17, format_size_option(int(mark)), "middle"))
    for mark in y.ticks:
        at = y.at(mark)
        parts.append(f'<path d="M{LEFT:g} {at:.1f}H{right:g}" {faint}/>')
        parts.append(_text(LEFT - 8, at + 4, format_rate(mark), "end"))
    parts.append(_text(LEFT + WIDTH / 2, bottom + 38, "size of a rank's payload", "middle", ' fill-opacity="0.75"'))
    turned = f' fill-opacity="0.75" transform="rotate(-90 12 {TOP + HEIGHT / 2:g})"'
    return [*parts, _text(12, TOP + HEIGHT / 2, "bus bandwidth", "middle", turned)]


def _line(at: int, name: str, points: Sequence[Point], x: Axis, y: Axis) -> list[str]:
    """The band between the quartiles, the medians, a marker for each with its figures."""
    colour = COLOURS[at % len(COLOURS)]
    parts = []
    if len(points) > 1:
        above = [f"{x.at(p.size):.1f} {y.at(p.high):.1f}" for p in points]
        below = [f"{x.at(p.size):.1f} {y.at(p.low):.1f}" for p in reversed(points)]
        parts.append(f'<path class="band" d="M{"L".join(above + below)}Z" fill="{colour}" fill-opacity="0.16"/>')
        middle = "L".join(f"{x.at(p.size):.1f} {y.at(p.median):.1f}" for p in points)
        parts.append(f'<path class="line" d="M{middle}" fill="none" {_stroke(at)}/>')
    else:
        only = points[0]
        ends = f"M{x.at(only.size):.1f} {y.at(only.low):.1f}V{y.at(only.high):.1f}"
        parts.append(f'<path class="band" d="{ends}" stroke="{colour}" stroke-width="5" stroke-opacity="0.3"/>')
    for p in points:
        quartiles = f"{format_rate(p.low)} to {format_rate(p.high)}"
        said = f"{name}, {format_size_option(int(p.size))}: {format_rate(p.median)} ({quartiles})"
        parts.append(_marker(at, x.at(p.size), y.at(p.median), said))
    return parts


def _stroke(at: int) -> str:
    dash = DASHES[at // len(COLOURS) % len(DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{COLOURS[at % len(COLOURS)]}" stroke-width="2"{dashes}'


def _marker(at: int, x: float, y: float, said: str) -> str:
    """Round, square, triangle, diamond: lines are told apart without their colour, too."""
    shape = (
        f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
        f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8Z",
        f"M{x:.1f} {y - 5:.1f}l5 9h-10Z",
        f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5Z",
    )[at % 4]
    title = f"<title>{escape(said)}</title>" if said else ""
    return f'<path class="point" d="{shape}" fill="{COLOURS[at % len(COLOURS)]}">{title}</path>'


def _legend(at: int, name: str) -> list[str]:
    x, y = LEFT + WIDTH + 20, TOP + LINE * (at + 0.5)
    return [
        f'<path d="M{x:.1f} {y:.1f}h30" fill="none" {_stroke(at)}/>',
        _marker(at, x + 15, y, ""),
        f"<g><title>{escape(name)}</title>{_text(x + 38, y + 4, _cut(name))}</g>",
    ]
