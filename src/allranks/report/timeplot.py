"""A timeline as SVG text, to stand in a page: a row a node, thinner ones for its ranks (pure).

Nothing happens for most of a long run, so the axis is not linear: a gap without events takes at most as much room
as its logarithm, is shaded, and says how long it is. No script, no style sheet, nothing fetched; names are escaped.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from .timeline import DONE, ENDED, FAILED, Mark, Row, Timeline, chosen

LEFT, WIDTH, TOP, NODE, RANK = 170.0, 900.0, 62.0, 20.0, 15.0
MOST = 160  # rows
LINEAR = 20.0  # seconds that a run may last to have a linear axis
GAP = 4.0  # seconds without events that take their own room
TICK = 74.0  # between two labels of the axis
NAME = 22  # characters of a name
COLOURS = {
    "connecting": "#9aa3b2", "ready": "#c9b458", "gate": "#e69f00", "running": "#a9b8c9", "silent": "#b8578f",
    "lost": "#b42318", "started": "#56b4e9", "initialised": "#009e73",
}  # fmt: skip
WORDS = {
    "connecting": "connecting", "ready": "ready, looked at", "gate": "proving the master's address",
    "running": "node has ranks", "started": "rank started", "initialised": "process group initialised",
    "silent": "node is silent", "lost": "node is lost",
}  # fmt: skip
_SHADE = 'fill="currentColor" fill-opacity="0.07" stroke="currentColor" stroke-opacity="0.2" stroke-dasharray="2 4"'
_DASHED = 'stroke-dasharray="3 3" stroke-opacity="0.8"'
MARKS = {DONE: "#1a7f4b", FAILED: "#d92d20", ENDED: "#6b7480"}


class Scale:
    """Time to place: linear between events, gaps compressed."""

    def __init__(self, times: Iterable[float]) -> None:
        points = sorted(set(times)) or [0.0]
        self._times = points if len(points) > 1 else [points[0], points[0] + 1.0]
        linear = self._times[-1] - self._times[0] <= LINEAR
        self._at = [0.0]
        for before, after in pairwise(self._times):
            self._at.append(self._at[-1] + (after - before if linear else _room(after - before)))
        self.gaps = [] if linear else [(a, b) for a, b in pairwise(self._times) if _room(b - a) < (b - a) / 2]
        self._linear = linear

    def at(self, t: float) -> float:
        """The place of a moment, in units of the drawing."""
        times = self._times
        i = min(max(bisect_right(times, t) - 1, 0), len(times) - 2)
        part = (t - times[i]) / (times[i + 1] - times[i])
        place = self._at[i] + min(max(part, 0.0), 1.0) * (self._at[i + 1] - self._at[i])
        return LEFT + WIDTH * place / self._at[-1]


def _room(seconds: float) -> float:
    return seconds if seconds <= GAP else GAP * (1 + math.log(seconds / GAP))


def duration(seconds: float) -> str:
    """0.35 s, 12.1 s, 3 min 5 s, 9 h 12 min"""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def legend(line: Timeline) -> list[tuple[str, str]]:
    """(colour, words) of the states that occur."""
    states = {span.state for row in line.rows for span in row.spans}
    return [(COLOURS[state], WORDS[state]) for state in COLOURS if state in states]


def timeline_plot(line: Timeline, culprits: Sequence[int] = ()) -> tuple[str, int]:
    """The SVG element (empty without rows), and the number of rows that are left out."""
    rows, left_out = chosen(line, culprits, MOST)
    if not rows:
        return "", 0
    times = [t for row in line.rows for span in row.spans for t in (span.start, span.end)]
    scale = Scale([line.start, line.end, *times, *(m.t for m in line.moments)])
    height = TOP + sum(NODE if row.rank is None else RANK for row in rows) + 14
    width = LEFT + WIDTH + 20
    parts = [
        f'<svg class="timeline" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        'font-family="system-ui, sans-serif" font-size="11" fill="currentColor" '
        f'aria-label="{escape(f"Timeline of {len(rows)} nodes and ranks over {duration(line.end - line.start)}")}">',
        *_gaps(scale, height), *_axis(line, scale, height), *_moments(line.moments, scale, height),
    ]  # fmt: skip
    y = TOP
    for row in rows:
        parts += _row(row, y, scale, line.start, row.rank is not None and row.rank in culprits)
        y += NODE if row.rank is None else RANK
    return "\n".join([*parts, "</svg>"]), left_out


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>'


def _gaps(scale: Scale, height: float) -> list[str]:
    parts = []
    for start, end in scale.gaps:
        x, wide = scale.at(start), scale.at(end) - scale.at(start)
        place = f'x="{x:.1f}" y="{TOP - 4:g}" width="{wide:.1f}" height="{height - TOP - 6:.1f}"'
        parts.append(f'<rect class="gap" {place} {_SHADE}/>')
        if wide > 60:
            parts.append(_text(x + wide / 2, height - 3, f"{duration(end - start)} without events",
                               ' text-anchor="middle" fill-opacity="0.7" font-size="10"'))  # fmt: skip
    return parts


def _axis(line: Timeline, scale: Scale, height: float) -> list[str]:
    """Labels at events, as far apart as they can be read."""
    times = sorted({line.start, line.end, *(s.start for r in line.rows for s in r.spans), *(m.t for m in line.moments)})
    parts, last = [], -math.inf
    for t in times:
        x = scale.at(t)
        if x - last < TICK and t != line.start:
            continue
        last = x
        parts.append(f'<path d="M{x:.1f} {TOP - 10:g}V{height - 14:.1f}" stroke="currentColor" stroke-opacity="0.13"/>')
        parts.append(_text(x, TOP - 14, f"+{duration(t - line.start)}", ' fill-opacity="0.75" text-anchor="middle"'))
    return parts


def _moments(moments: Sequence[Mark], scale: Scale, height: float) -> list[str]:
    """What concerns all: a line, and its words where there is room for them on one of three levels."""
    parts: list[str] = []
    ends = [-math.inf] * 3
    for mark in moments:
        x = scale.at(mark.t)
        colour = MARKS.get(mark.kind, "#b8578f" if mark.kind.startswith("hang") else "currentColor")
        level = next((i for i, end in enumerate(ends) if x > end), None)
        top = 12 + 12 * (level or 0)
        line = f'<path d="M{x:.1f} {top - 2:g}V{height - 14:.1f}" stroke="{colour}" {_DASHED}/>'
        parts.append(f'<g class="moment"><title>{escape(mark.text)}</title>{line}</g>')
        if level is not None:
            right = x + 6 * len(mark.text) > LEFT + WIDTH
            ends[level] = x + 6 * len(mark.text) + 8 if not right else math.inf
            side = (x - 3, ' text-anchor="end"') if right else (x + 3, "")
            parts.append(_text(side[0], top + 6, mark.text, f' fill="{colour}"{side[1]}'))
    return parts


def _row(row: Row, y: float, scale: Scale, start: float, culprit: bool) -> list[str]:
    is_node = row.rank is None
    height = (NODE if is_node else RANK) - 5
    name = row.node if is_node else f"rank {row.rank}"
    weight = ' font-weight="700" fill="#d92d20"' if culprit else ' font-weight="600"' if is_node else ""
    shown = name if len(name) <= NAME else name[: NAME - 1] + "…"
    parts = [f"<g><title>{escape(name)}</title>{_text(8 if is_node else 24, y + height / 2 + 4, shown, weight)}</g>"]
    for span in row.spans:
        x, end = scale.at(span.start), scale.at(span.end)
        said = f"{name}: {WORDS[span.state]}, +{duration(span.start - start)} to +{duration(span.end - start)}"
        tall = height * 0.55 if is_node else height
        top = y + (height - tall) / 2
        place = f'x="{x:.1f}" y="{top:.1f}" width="{max(1.5, end - x):.1f}" height="{tall:.1f}"'
        kind = f'class="bar {"node" if is_node else "rank"}" rx="2" fill="{COLOURS[span.state]}"'
        parts.append(f"<rect {kind} {place}><title>{escape(said)}</title></rect>")
    if not is_node and not row.spans:
        place = f'x="{LEFT:g}" y="{y:.1f}" width="{WIDTH:g}" height="{height:g}"'
        kind = 'class="bar rank never" rx="2" fill="none" stroke="currentColor" stroke-opacity="0.3"'
        parts.append(f"<rect {kind} {place}><title>{escape(name)} never started</title></rect>")
    return parts + [_mark(mark, scale.at(mark.t), y + height / 2, f"{name} {mark.text}", start) for mark in row.marks]


def _mark(mark: Mark, x: float, y: float, said: str, start: float) -> str:
    """A tick for done, a cross for failed, a stop for what allranks ended: told apart without colour."""
    shape = {
        DONE: f"M{x - 4:.1f} {y:.1f}l3 3.5l6 -7",
        ENDED: f"M{x:.1f} {y - 4:.1f}v8",
    }.get(mark.kind, f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8")
    colour = MARKS.get(mark.kind, MARKS[FAILED])
    title = f"<title>{escape(said)}, +{duration(mark.t - start)}</title>"
    return (f'<g class="exit {mark.kind}">{title}<path d="{shape}" fill="none" stroke="var(--back, #fff)" '
            f'stroke-width="4"/><path d="{shape}" fill="none" stroke="{colour}" stroke-width="2"/></g>')  # fmt: skip
