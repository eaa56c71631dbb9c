"""Nodes × nodes at a glance: text for the terminal, data for a table of the HTML report (pure).

A row is the node that sends, a column the one that receives; of several rails the worst is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .measure import Cell
from .norms import BANDWIDTH, LATENCY, Metric, Norms, State, shown

SHOWN = 32  # nodes in the terminal: 32 columns of 3 fit a screen; beyond, those with the worst links


@dataclass(frozen=True)
class Level:
    """How a link compares: `block` and `ansi` in the terminal, `name` for a style sheet, from `least` of the usual."""

    name: str
    block: str
    ansi: str
    least: float
    words: str


LEVELS = (
    Level("good", "░░", "32", 0.70, "70 % or more of the median"),
    Level("fair", "▒▒", "33", 0.50, "50-70 %"),
    Level("poor", "▓▓", "33", 0.20, "20-50 %"),
    Level("bad", "██", "31", 0.0, "less than 20 %"),
)
DEAD = Level("dead", "××", "1;31", -1.0, "dead")
NONE = Level("none", " ·", "2", -1.0, "not measured")


def level_of(ratio: float) -> Level:
    """The level of a ratio to the usual value, 1 being usual and less being worse."""
    return next(level for level in LEVELS if ratio >= level.least)


@dataclass(frozen=True)
class Spot:
    """One square: the value (None: dead or not measured), its ratio to the usual (below 1 is worse), its level."""

    value: float | None
    ratio: float | None
    level: Level


def spot(states: Sequence[State], metric: Metric, usual: Norms, start: str) -> Spot:
    """The worst rail of a pair, in the direction that starts at a node."""
    if any(state.is_dead for state in states):
        return Spot(None, None, DEAD)
    values = [v for state in states if (v := state.values.get((metric.name, start))) is not None]
    norm = usual.get(metric.name)
    if not values or norm is None:
        return Spot(None, None, NONE)
    value = min(values) if metric.better > 0 else max(values)
    ratio = float((value / norm.usual) ** metric.better)
    return Spot(value, ratio, level_of(ratio))


Grid = dict[tuple[str, str], Spot]


def grid(cells: Mapping[Cell, State], usual: Norms, nodes: Sequence[str], metric: Metric = BANDWIDTH) -> Grid:
    """The squares by (from, to); a node with itself is absent."""
    by_pair: dict[tuple[str, str], list[State]] = {}
    for cell, state in cells.items():
        by_pair.setdefault(cell[:2], []).append(state)
    found = {}
    for a in nodes:
        for b in nodes:
            if a != b:
                states = by_pair.get((a, b) if a < b else (b, a), [])
                found[(a, b)] = spot(states, metric, usual, a)
    return found


def heatmap(
    cells: Mapping[Cell, State], usual: Norms, nodes: Sequence[str], metric: Metric = BANDWIDTH, colour: bool = False
) -> str:
    """The heatmap as text with its legend. `colour` is for the caller to decide (NO_COLOR, a pipe): without it the
    blocks alone tell the levels apart."""
    squares = grid(cells, usual, nodes, metric)
    rows = _worst(squares, nodes)
    width = max((len(node) for node in rows), default=0)
    digits = len(str(len(nodes)))
    number = {node: f"{at:>{digits}}" for at, node in enumerate(nodes, 1)}
    norm = usual.get(metric.name)
    median = f", median {shown(metric, norm.usual)}" if norm else ""
    lines = [f"{metric.name}, row sends to column{median}"]
    lines.append(" " * (width + digits + 1) + "".join(f"{number[node]:>3}" for node in rows))
    for a in rows:
        marks = ["  " if a == b else _paint(squares[(a, b)].level, colour) for b in rows]
        lines.append(f"{a:<{width}} {number[a]}" + "".join(f" {mark}" for mark in marks))
    if len(rows) < len(nodes):
        lines.append(f"({len(rows)} of {len(nodes)} nodes: those with the worst links)")
    return "\n".join([*lines, _legend(squares, metric, colour)])


def _worst(squares: Grid, nodes: Sequence[str]) -> list[str]:
    """The nodes to show, in their own order."""
    if len(nodes) <= SHOWN:
        return list(nodes)
    rank = {level.name: at for at, level in enumerate((DEAD, *reversed(LEVELS), NONE))}
    score = {node: [0] * len(rank) for node in nodes}
    for (a, b), square in squares.items():
        for node in (a, b):
            score[node][rank[square.level.name]] -= 1
    chosen = set(sorted(nodes, key=lambda node: score[node])[:SHOWN])
    return [node for node in nodes if node in chosen]


def _paint(level: Level, colour: bool) -> str:
    return f"\x1b[{level.ansi}m{level.block}\x1b[0m" if colour else level.block


def _legend(squares: Grid, metric: Metric, colour: bool) -> str:
    """The levels that occur, with what they mean for this metric."""
    present = {square.level.name for square in squares.values()}
    shown_levels = [level for level in (*LEVELS, DEAD, NONE) if level.name in present]
    parts = [f"{_paint(level, colour)} {_words(level, metric)}" for level in shown_levels]
    return "   ".join(parts)


def _words(level: Level, metric: Metric) -> str:
    if metric is BANDWIDTH or level in (DEAD, NONE):
        return level.words
    at = LEVELS.index(level)
    top = LEVELS[at - 1].least if at else 0.0
    if not at:
        return f"up to {1 / level.least:.1f} times the median"
    return f"{1 / top:.1f}-{1 / level.least:.1f} times" if level.least else f"more than {1 / top:.1f} times"


def table(
    cells: Mapping[Cell, State], usual: Norms, nodes: Sequence[str], metric: Metric = BANDWIDTH
) -> dict[str, Any]:
    """The data of an HTML table: `rows` of squares with `level` (a class), `text`, `title` and the figures."""
    squares = grid(cells, usual, nodes, metric)
    norm = usual.get(metric.name)
    return {
        "metric": metric.name,
        "unit": "bytes/s" if metric is BANDWIDTH else "s",
        "median": norm.usual if norm else None,
        "median_text": shown(metric, norm.usual) if norm else "",
        "nodes": list(nodes),
        "rows": [{"node": a, "cells": [_square(squares.get((a, b)), a, b, metric) for b in nodes]} for a in nodes],
        "legend": [{"level": level.name, "text": _words(level, metric)} for level in (*LEVELS, DEAD, NONE)],
    }


def _square(found: Spot | None, a: str, b: str, metric: Metric) -> dict[str, Any]:
    if found is None:
        return {"level": "self", "text": "", "title": "", "value": None, "ratio": None}
    text = shown(metric, found.value) if found.value is not None else found.level.words
    title = f"{a} → {b}: {text}" + (f" ({found.ratio:.0%} of the median)" if found.ratio and metric.better > 0 else "")
    return {"level": found.level.name, "text": text, "title": title, "value": found.value, "ratio": found.ratio}


METRICS_SHOWN = (BANDWIDTH, LATENCY)
