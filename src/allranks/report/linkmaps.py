"""The heatmap of links for a page, from the rows of a test (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allranks.fabric.analysis.blame import nodes_of
from allranks.fabric.analysis.heatmap import heatmap
from allranks.fabric.analysis.norms import METRICS, norms, states
from allranks.fabric.metric_rows import LinkRow
from allranks.protocol.codec import DecodeError, decode
from allranks.protocol.jsontext import Json

LONGEST = 100  # characters of a name
BOUND = 1e24  # of any figure


def link_map(rows: Sequence[Mapping[str, Json]], names: Sequence[str]) -> str:
    """Draw the map; empty without a link. `names` give the order of the nodes. Rows that can't be read are left out."""
    links = [link for link in map(_link, rows) if link]
    if not links:
        return ""
    # As when they are judged: a re-test counts instead of the first.
    cells = {**states(link for link in links if not link.again), **states(link for link in links if link.again)}
    measured = nodes_of(cells)
    nodes = [name for name in dict.fromkeys([*names, *measured]) if name in set(measured)]
    return heatmap(cells, norms(states(links)), nodes)


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
