"""Heatmaps of links for a page: nodes × nodes, for bandwidth and for round trips (pure).

The squares are those of `allranks.fabric.analysis.heatmap`, with a number in each, so that colour is not all that tells
them apart: the percentage of the median bandwidth, or how many times the median a round trip takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from allranks.fabric.analysis.blame import nodes_of
from allranks.fabric.analysis.heatmap import ALL_LEVELS, DEAD, NONE, UNMEASURED, Grid, describe_level, grid, worst_nodes
from allranks.fabric.analysis.norms import BANDWIDTH, LATENCY, METRICS, Metric, Norms, norms, states
from allranks.fabric.metric_rows import LinkRow
from allranks.protocol.codec import DecodeError, decode
from allranks.protocol.jsontext import Json

MOST = 64  # nodes on each side: 4096 squares; of more, those with the worst links
LONGEST = 100  # characters of a name
BOUND = 1e24  # of any figure
MARKS = {DEAD.name: "×", NONE.name: "·"}


@dataclass(frozen=True)
class Square:
    """A square: `level` is a class of the style sheet, `mark` what stands in it, `title` what a pointer shows."""

    level: str
    mark: str
    title: str


@dataclass(frozen=True)
class MapRow:
    """The squares of a node that sends."""

    node: str
    cells: tuple[Square, ...]


@dataclass(frozen=True)
class LegendItem:
    """What a level that occurs means."""

    level: str
    mark: str
    text: str


@dataclass(frozen=True)
class LinkMap:
    """A map of one metric; `left_out` counts the nodes that are not shown."""

    title: str
    numbers: str
    median_text: str
    nodes: tuple[str, ...]
    rows: tuple[MapRow, ...]
    legend: tuple[LegendItem, ...]
    left_out: int


def link_maps(rows: Sequence[Mapping[str, Json]], names: Sequence[str]) -> list[LinkMap]:
    """Make a map for each metric that was measured; `names` give the order of the nodes.

    Rows that can't be read are left out.
    """
    links = [link for link in map(_link, rows) if link]
    if not links:
        return []
    # As when they are judged: a re-test counts instead of the first.
    cells = {**states(link for link in links if not link.again), **states(link for link in links if link.again)}
    usual = norms(states(links))
    measured = nodes_of(cells)
    nodes = [name for name in dict.fromkeys([*names, *measured]) if name in set(measured)]
    metrics = [metric for metric in (BANDWIDTH, LATENCY) if metric.name in usual] or [BANDWIDTH]
    grids = [grid(cells, usual, metric) for metric in metrics]
    chosen = worst_nodes(grids, nodes, MOST)
    left_out = len(nodes) - len(chosen)
    return [_link_map(squares, metric, usual, chosen, left_out) for metric, squares in zip(metrics, grids, strict=True)]


def _link(row: Mapping[str, Json]) -> LinkRow | None:
    """Read a measurement, its names cut; None for a row that isn't one."""
    try:
        cut = {name: str(row[name])[:LONGEST] for name in ("a", "b")}
        link = decode(LinkRow, {**row, **cut})
    except (KeyError, DecodeError):
        return None
    values = [getattr(way, metric.name) for way in (link.there, link.back) for metric in METRICS]
    if link.a == link.b or any(value is not None and abs(value) >= BOUND for value in values):
        return None
    return link


def _link_map(squares: Grid, metric: Metric, usual: Norms, nodes: Sequence[str], left_out: int) -> LinkMap:
    rows = [MapRow(a, tuple(_square(squares, a, b, metric) for b in nodes)) for a in nodes]
    present = {square.level for row in rows for square in row.cells}
    legend = [
        LegendItem(level.name, MARKS.get(level.name, ""), describe_level(level, metric))
        for level in ALL_LEVELS
        if level.name in present
    ]
    title = "Bandwidth of links"
    numbers = "% of the median"
    if metric is LATENCY:
        title = "Round trips of links"
        numbers = "times the median"
    norm = usual.get(metric.name)
    median = metric.format(norm.usual) if norm else ""
    return LinkMap(title, numbers, median, tuple(nodes), tuple(rows), tuple(legend), left_out)


def _square(squares: Grid, a: str, b: str, metric: Metric) -> Square:
    if a == b:
        return Square("self", "", "")
    spot = squares.get((a, b), UNMEASURED)
    if spot.value is None or spot.ratio is None:
        return Square(spot.level.name, MARKS[spot.level.name], f"{a} → {b}: {spot.level.words}")
    title = f"{a} → {b}: {metric.format(spot.value)}"
    if spot.ratio and metric is BANDWIDTH:
        title += f" ({spot.ratio:.0%} of the median)"
    return Square(spot.level.name, mark(spot.ratio, metric), title)


def mark(ratio: float, metric: Metric) -> str:
    """Write the number in a square: `98` per cent of the median (cut: 69.9 is not yet 70), or `1.2` times it."""
    if metric is BANDWIDTH:
        return str(int(ratio * 100)) if ratio < 10 else ">999"
    times = 1 / ratio if ratio > 0 else BOUND
    if times >= 1000:
        return ">999"
    return f"{times:.1f}" if times < 9.95 else f"{times:.0f}"
