"""Explaining bad cells by as few culprits as possible: nodes first, then links (pure).

A node is at fault when it is bad with many of its peers; a pair that no node explains is a link. The culprit that
explains most is taken first, and what it explains counts no more: peers of a bad node are not blamed for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from ..metric_rows import Cell

# Of a node's peers: with more than half bad the node is the likelier cause, and one bad figure that a good
# sample hides, or one more bad link, must not change the answer.
NODE_SHARE = 0.6
FEWEST = 2  # peers: one bad pair is a link
WRONG = 2  # a culprit is charged this for each good cell it would explain
EVERYWHERE = 0.9  # of all cells: no culprit, but something common to all


@dataclass(frozen=True)
class Culprit:
    """One explanation. `kind`: node, link or all.

    `nodes` is the node, both ends of the link, or all; `cells` are its bad cells, `fine` how many other
    cells it has.
    """

    kind: str
    nodes: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    fine: int = 0

    def covers(self, cell: Cell) -> bool:
        """Tell whether a cell is one that the culprit spoils."""
        if self.kind == "link":
            return cell == self.nodes
        return self.kind == "all" or self.nodes[0] in cell

    def charged(self, cells: Iterable[Cell], bad: Collection[Cell]) -> Culprit:
        """Give the same with its bad cells among these, and the count of its others."""
        covered = [cell for cell in cells if self.covers(cell)]
        bad_cells = tuple(cell for cell in covered if cell in bad)
        return replace(self, cells=bad_cells, fine=len(covered) - len(bad_cells))

    def bad_share(self) -> float:
        """Give the bad cells' share of all; 0 where there is none."""
        return len(self.cells) / max(1, len(self.cells) + self.fine)

    def gain(self) -> tuple[int, int]:
        """Order explanations: the greatest explains most."""
        return len(self.cells) - WRONG * self.fine, len(self.cells)


def nodes_of(cells: Iterable[Cell]) -> list[str]:
    """List the nodes at the ends of cells, in their order."""
    return list(dict.fromkeys(node for cell in cells for node in cell))


def explain(cells: Collection[Cell], bad: Collection[Cell]) -> list[Culprit]:
    """Find the culprits for the bad ones among all measured cells, the one that explains most first."""
    nodes = nodes_of(cells)
    if len(nodes) > 2 and len(bad) > EVERYWHERE * len(cells):
        return [Culprit("all", tuple(nodes), tuple(bad), len(cells) - len(bad))]
    culprits: list[Culprit] = []
    unexplained = dict.fromkeys(bad)
    open_cells = list(cells)
    while len(nodes) > 2:
        best = max(_candidates(open_cells, unexplained), key=Culprit.gain, default=None)
        if best is None:
            break
        culprits.append(best)
        unexplained = {cell: None for cell in unexplained if cell not in best.cells}
        open_cells = [cell for cell in open_cells if not best.covers(cell)]
    links = [Culprit("link", pair).charged(cells, unexplained) for pair in unexplained]
    return culprits + links


def _candidates(cells: Collection[Cell], bad: Collection[Cell]) -> Iterator[Culprit]:
    suspects = set(nodes_of(bad))
    for node in filter(suspects.__contains__, nodes_of(cells)):
        culprit = Culprit("node", (node,)).charged(cells, bad)
        if culprit.bad_share() >= NODE_SHARE and len(culprit.cells) >= FEWEST:
            yield culprit
