"""Explaining bad cells by as few culprits as possible: nodes and rails first, then links (pure).

A node is at fault when it is bad with many of its peers, a rail when its index is bad between many nodes, one
rail of one node when only that is; a pair that none of these explains is a link. The culprit that explains most
is taken first, and what it explains counts no more: peers of a bad node are not blamed for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from .measure import Cell

# Of a node's peers: with more than half bad the node is the likelier cause, and one bad figure that a good
# sample hides, or one more bad link, must not change the answer.
NODE_SHARE = 0.6
FEWEST = 2  # peers: one bad pair is a link
RAIL_PAIRS = 3  # with fewer pairs a rail can't be told from a node's own rail
WRONG = 2  # a culprit is charged this for each good cell it would explain: three bad nodes are not a bad rail
EVERYWHERE = 0.9  # of all cells: no culprit, but something common to all
ALL_LINKS = "all other links"

Kind = Literal["node", "rail", "node-rail", "link", "all"]


@dataclass(frozen=True)
class Culprit:
    """One explanation. `nodes` is the node, both ends of the link, none for a rail, or all; `rail` where it is one
    index only; `cells` are its bad cells, `fine` how many other cells it has. `besides`: the culprits that explain
    a part of its figures, where it was named for what they leave."""

    kind: Kind
    nodes: tuple[str, ...]
    rail: int | None
    cells: tuple[Cell, ...]
    fine: int
    besides: tuple[str, ...] = ()

    def peers(self) -> list[str]:
        """The other ends of the bad cells of a node."""
        return list(dict.fromkeys(n for cell in self.cells for n in cell[:2] if n not in self.nodes[:1]))


def explain(cells: Collection[Cell], bad: Collection[Cell]) -> list[Culprit]:
    """The culprits for the bad ones among all measured cells, the one that explains most first."""
    nodes = tuple(dict.fromkeys(node for cell in cells for node in cell[:2]))
    if len(nodes) > 2 and len(bad) > EVERYWHERE * len(cells):
        return [Culprit("all", nodes, None, tuple(bad), len(cells) - len(bad))]
    left, open_cells = set(bad), list(cells)
    found: list[Culprit] = []
    while left:
        options = list(_options(open_cells, left)) if len(nodes) > 2 else []
        if not options:
            break
        best = max(options, key=lambda c: (len(c.cells) - WRONG * c.fine, len(c.cells), c.kind == "node"))
        found.append(best)
        left -= set(best.cells)
        open_cells = [cell for cell in open_cells if not covers(best, cell)]
    return found + _links(cells, [cell for cell in bad if cell in left])


def covers(culprit: Culprit, cell: Cell) -> bool:
    """The cell is one of the node's or of the rail's."""
    inside = culprit.rail in (None, cell[2])
    everywhere = culprit.kind in ("rail", "all")
    return inside and (everywhere or culprit.nodes[0] in cell[:2])


def _options(cells: Collection[Cell], bad: Collection[Cell]) -> Iterator[Culprit]:
    """Every node, rail and rail of a node that is bad often enough among the cells not yet explained."""
    rails = sorted({cell[2] for cell in cells})
    some = {node for cell in bad for node in cell[:2]}
    names = [node for node in dict.fromkeys(n for cell in cells for n in cell[:2]) if node in some]
    several: list[int] = rails if len(rails) > 1 else []
    yield from _worse([Culprit("node", (node,), None, (), 0) for node in names], cells, bad)
    yield from _worse([Culprit("node-rail", (node,), rail, (), 0) for rail in several for node in names], cells, bad)
    yield from _worse([Culprit("rail", (), rail, (), 0) for rail in several], cells, bad)


def _worse(shapes: Collection[Culprit], cells: Collection[Cell], bad: Collection[Cell]) -> Iterator[Culprit]:
    for shape in shapes:
        mine = [cell for cell in cells if covers(shape, cell)]
        ill = tuple(cell for cell in mine if cell in bad)
        pairs = {cell[:2] for cell in ill}
        if len(ill) >= NODE_SHARE * len(mine) and len(pairs) >= (RAIL_PAIRS if shape.kind == "rail" else FEWEST):
            yield Culprit(shape.kind, shape.nodes, shape.rail, ill, len(mine) - len(ill))


def _links(cells: Collection[Cell], bad: Collection[Cell]) -> list[Culprit]:
    """One for each pair: of one rail where only that is bad and others were measured, else of the pair."""
    found = []
    for a, b in dict.fromkeys(cell[:2] for cell in bad):
        mine = [cell for cell in cells if cell[:2] == (a, b)]
        ill = tuple(cell for cell in bad if cell[:2] == (a, b))
        rail = ill[0][2] if len(ill) == 1 and len(mine) > 1 else None
        found.append(Culprit("link", (a, b), rail, ill, len(mine) - len(ill)))
    return found
