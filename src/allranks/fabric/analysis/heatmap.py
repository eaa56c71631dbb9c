"""Nodes × nodes at a glance: how each link compares with the usual, and the text for the terminal (pure).

A row is the node that sends, a column the one that receives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Dict, Tuple

from ..metric_rows import Cell
from .norms import BANDWIDTH, CellState, Metric, Norms

NODES_SHOWN = 32  # in the terminal: 32 columns of 3 fit a screen; beyond, those with the worst links


@dataclass(frozen=True)
class Level:
    """How a link compares: `block` in the terminal, `name` for a style sheet, from `least` of the usual."""

    name: str
    block: str
    least: float
    words: str


LEVELS = (
    Level("good", "░░", 0.70, "70 % or more of the median"),
    Level("fair", "▒▒", 0.50, "50-70 %"),
    Level("poor", "▓▓", 0.20, "20-50 %"),
    Level("bad", "██", 0.0, "less than 20 %"),
)
DEAD = Level("dead", "××", -1.0, "dead")
NONE = Level("none", " ·", -1.0, "not measured")
ALL_LEVELS = (*LEVELS, DEAD, NONE)
WORST_FIRST = (DEAD, *reversed(LEVELS), NONE)


def level_of(ratio: float) -> Level:
    """Find the level of a ratio to the usual value, 1 being usual and less being worse."""
    return next(level for level in LEVELS if ratio >= level.least)


def describe_level(level: Level, metric: Metric) -> str:
    """Write what a level means for a metric."""
    if metric is BANDWIDTH or level not in LEVELS:
        return level.words
    at = LEVELS.index(level)
    if at == 0:
        return f"up to {1 / level.least:.1f} times the median"
    low = f"{1 / LEVELS[at - 1].least:.1f}"
    if not level.least:
        return f"more than {low} times"
    return f"{low}-{1 / level.least:.1f} times"


@dataclass(frozen=True)
class Spot:
    """One square: the value (None: dead or not measured), its ratio to the usual (below 1 is worse), its level."""

    value: float | None
    ratio: float | None
    level: Level


def spot(state: CellState, metric: Metric, usual: Norms, start: str) -> Spot:
    """Judge a pair, in the direction that starts at a node."""
    norm = usual.get(metric.name)
    value = state.value(metric, start)
    if state.is_dead:
        return Spot(None, None, DEAD)
    if value is None or norm is None:
        return Spot(None, None, NONE)
    ratio = (value / norm.usual) ** metric.better
    return Spot(value, ratio, level_of(ratio))


UNMEASURED = Spot(None, None, NONE)
Grid = Dict[Tuple[str, str], Spot]


def grid(cells: Mapping[Cell, CellState], usual: Norms, metric: Metric) -> Grid:
    """Give the squares by (from, to) of the pairs that were measured."""
    squares = {}
    for (a, b), state in cells.items():
        squares[a, b] = spot(state, metric, usual, a)
        squares[b, a] = spot(state, metric, usual, b)
    return squares


def worst_nodes(grids: Iterable[Grid], nodes: Sequence[str], limit: int) -> list[str]:
    """Choose as many nodes as fit, those with the most dead and bad links, in their own order."""
    if len(nodes) <= limit:
        return list(nodes)
    badness = {level.name: at for at, level in enumerate(WORST_FIRST)}
    scores = {node: [0] * len(WORST_FIRST) for node in nodes}
    for squares in grids:
        for pair, square in squares.items():
            for node in pair:
                scores[node][badness[square.level.name]] -= 1
    chosen = set(sorted(nodes, key=scores.__getitem__)[:limit])
    return [node for node in nodes if node in chosen]


def heatmap(cells: Mapping[Cell, CellState], usual: Norms, nodes: Sequence[str]) -> str:
    """Write the heatmap of bandwidths with its legend."""
    squares = grid(cells, usual, BANDWIDTH)
    rows = worst_nodes([squares], nodes, NODES_SHOWN)
    width = max(map(len, rows), default=0)
    digits = len(str(len(nodes)))
    numbers = {node: f"{at:>{digits}}" for at, node in enumerate(nodes, 1)}
    norm = usual.get(BANDWIDTH.name)
    title = f"{BANDWIDTH.name}, row sends to column"
    if norm:
        title += f", median {BANDWIDTH.format(norm.usual)}"
    header = "".join(f"{numbers[node]:>3}" for node in rows)
    lines = [title, " " * (width + digits + 1) + header]
    present = set()
    for a in rows:
        line = f"{a:<{width}} {numbers[a]}"
        for b in rows:
            block = "  "
            if a != b:
                level = squares.get((a, b), UNMEASURED).level
                present.add(level)
                block = level.block
            line += f" {block}"
        lines.append(line)
    if len(rows) < len(nodes):
        lines.append(f"({len(rows)} of {len(nodes)} nodes: those with the worst links)")
    legend = [f"{level.block} {level.words}" for level in ALL_LEVELS if level in present]
    return "\n".join([*lines, "   ".join(legend)])
