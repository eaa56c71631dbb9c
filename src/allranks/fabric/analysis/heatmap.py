"""Nodes × nodes at a glance: how each link compares with the usual, as text (pure).

A row is the node that sends, a column the one that receives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Dict, NamedTuple, Tuple

from ..metric_rows import Cell
from .norms import BANDWIDTH, CellState, Norms

NODES_SHOWN = 32  # 32 columns of 3 fit a screen; beyond, those with the worst links


class Level(NamedTuple):
    """How a link compares: its block, from `least` of the usual on."""

    block: str
    least: float
    words: str


LEVELS = (
    Level("░░", 0.70, "70 % or more of the median"),
    Level("▒▒", 0.50, "50-70 %"),
    Level("▓▓", 0.20, "20-50 %"),
    Level("██", 0.0, "less than 20 %"),
)
DEAD = Level("××", -1.0, "dead")
NONE = Level(" ·", -1.0, "not measured")
ALL_LEVELS = (*LEVELS, DEAD, NONE)
WORST_FIRST = (DEAD, *reversed(LEVELS), NONE)
Grid = Dict[Tuple[str, str], Level]  # by the node that sends and the one that receives


def _level(state: CellState, usual: Norms, start: str) -> Level:
    norm = usual.get(BANDWIDTH.name)
    value = state.value(BANDWIDTH, start)
    if state.is_dead:
        return DEAD
    if value is None or norm is None:
        return NONE
    return next(level for level in LEVELS if value / norm.usual >= level.least)


def _worst_nodes(squares: Grid, nodes: Sequence[str]) -> list[str]:
    """Choose as many nodes as fit, those with the most dead and bad links, in their own order."""
    if len(nodes) <= NODES_SHOWN:
        return list(nodes)
    scores = {node: [0] * len(WORST_FIRST) for node in nodes}
    for pair, level in squares.items():
        for node in pair:
            scores[node][WORST_FIRST.index(level)] -= 1
    chosen = set(sorted(nodes, key=scores.__getitem__)[:NODES_SHOWN])
    return [node for node in nodes if node in chosen]


def heatmap(cells: Mapping[Cell, CellState], usual: Norms, nodes: Sequence[str]) -> str:
    """Write the heatmap of bandwidths with its legend."""
    squares = {way: _level(state, usual, way[0]) for cell, state in cells.items() for way in (cell, cell[::-1])}
    rows = _worst_nodes(squares, nodes)
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
                level = squares.get((a, b), NONE)
                present.add(level)
                block = level.block
            line += f" {block}"
        lines.append(line)
    if len(rows) < len(nodes):
        lines.append(f"({len(rows)} of {len(nodes)} nodes: those with the worst links)")
    legend = [f"{level.block} {level.words}" for level in ALL_LEVELS if level in present]
    return "\n".join([*lines, "   ".join(legend)])
