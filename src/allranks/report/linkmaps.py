"""Heatmaps of links for a page: nodes × nodes, for bandwidth and for round trips (pure).

The squares are those of `allranks.links.heatmap`, with a number in each, so that colour is not all that tells them
apart: the percentage of the median bandwidth, or how many times the median a round trip takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allranks.links.heatmap import DEAD, LEVELS, METRICS_SHOWN, NONE, spot, table
from allranks.links.measure import Cell, Measurement, from_json
from allranks.links.norms import BANDWIDTH, METRICS, Metric, Norms, State, norms, states

Row = Mapping[str, Any]

MOST = 64  # nodes on each side: 4096 squares; of more, those with the worst links
LONGEST = 100  # characters of a name
BOUND = 1e24  # of any figure
MARKS = {DEAD.name: "×", NONE.name: "·", "self": ""}
_RANK = {level.name: at for at, level in enumerate((DEAD, *reversed(LEVELS), NONE))}


def link_maps(rows: Sequence[Row], names: Sequence[str]) -> list[dict[str, Any]]:
    """A map for each metric that was measured, as `heatmap.table` has it, each square with its `mark`; `left_out`
    counts the nodes that are not shown. Rows that can't be read are left out; `names` give the order of the nodes."""
    first = [m for row in rows if not row.get("again") and (m := _measurement(row))]
    second = [m for row in rows if row.get("again") and (m := _measurement(row))]
    if not first and not second:
        return []
    cells = {**states(first), **states(second)}  # as when they are judged: a re-test counts instead of the first
    usual = norms(states([*first, *second]))
    seen = {node for cell in cells for node in cell[:2]}
    nodes = [name for name in dict.fromkeys([*names, *_nodes(cells)]) if name in seen]
    chosen = _worst(nodes, cells, usual)
    inside = set(chosen)
    shown = {cell: state for cell, state in cells.items() if inside.issuperset(cell[:2])}
    metrics = [m for m in METRICS_SHOWN if m.name in usual] or [BANDWIDTH]
    return [{**_marked(table(shown, usual, chosen, metric), metric), "left_out": len(nodes) - len(chosen)}
            for metric in metrics]  # fmt: skip


def _measurement(row: Row) -> Measurement | None:
    """The measurement, its names cut; None for a row that isn't one."""
    try:
        given = {**row, "a": str(row["a"])[:LONGEST], "b": str(row["b"])[:LONGEST], "dead": str(row.get("dead") or "")}
        found = from_json(given)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    ways = [getattr(way, metric.name) for way in (found.there, found.back) for metric in METRICS]
    fine = all(v is None or (isinstance(v, (int, float)) and abs(v) < BOUND) for v in ways)
    return found if fine and found.a != found.b else None


def _nodes(cells: Iterable[Cell]) -> list[str]:
    return list(dict.fromkeys(node for cell in cells for node in cell[:2]))


def _worst(nodes: Sequence[str], cells: Mapping[Cell, State], usual: Norms) -> list[str]:
    """All nodes, or as many as fit, those with the most dead and bad links, in their own order."""
    if len(nodes) <= MOST:
        return list(nodes)
    score = {node: [0] * len(_RANK) for node in nodes}
    for cell, state in cells.items():
        for metric in METRICS_SHOWN:
            for start in cell[:2]:
                level = _RANK[spot([state], metric, usual, start).level.name]
                for node in cell[:2]:
                    score[node][level] -= 1
    chosen = set(sorted(nodes, key=score.__getitem__)[:MOST])
    return [node for node in nodes if node in chosen]


def _marked(found: dict[str, Any], metric: Metric) -> dict[str, Any]:
    present = set()
    for row in found["rows"]:
        for square in row["cells"]:
            present.add(square["level"])
            square["mark"] = MARKS.get(square["level"]) if square["ratio"] is None else mark(square["ratio"], metric)
    legend = [{**item, "mark": MARKS.get(item["level"], "")} for item in found["legend"] if item["level"] in present]
    title, numbers = (
        ("Bandwidth of links", "% of the median") if metric is BANDWIDTH
        else ("Round trips of links", "times the median")
    )  # fmt: skip
    return {**found, "legend": legend, "title": title, "numbers": numbers}


def mark(ratio: float, metric: Metric) -> str:
    """The number in a square: `98` per cent of the median (cut: 69.9 is not yet 70), or `1.2` times it."""
    if metric is BANDWIDTH:
        return str(int(ratio * 100)) if ratio < 10 else ">999"
    times = 1 / ratio if ratio > 0 else BOUND
    return f"{times:.1f}" if times < 9.95 else f"{times:.0f}" if times < 1000 else ">999"
