"""What remains of the bad cells once each culprit's own share is taken out (pure).

Two slow nodes explain that the link between them is slow, but not that it is ten times slower than their other links.
A culprit's share is how much worse than usual its cells are, in the middle; a cell that is still bad once the shares of
all that touch it are taken out has a fault of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..metric_rows import Cell
from .blame import ALL_LINKS, Culprit, explain
from .norms import BANDWIDTH, CellState, Floors, Metric, Norms, symptoms

# Of a culprit's cells: where more are far from its middle, they are its own spread (a node that fails now and then).
REMAINDER_SHARE = 1 / 3


@dataclass(frozen=True)
class Share:
    """How much worse than usual a culprit's cells are, as factors (1: as usual), by metric and by direction.

    `is_limit`: only its bandwidth is bad. Two limits in a row give the lower one; delays and losses add up.
    """

    culprit: Culprit
    factors: Mapping[tuple[Metric, bool], float]
    is_limit: bool
    is_dead: bool


def remaining_culprits(cells: Mapping[Cell, CellState], culprits: Sequence[Culprit], usual: Norms) -> list[Culprit]:
    """Find what is at fault besides these culprits, in the cells that they explain."""
    several = [culprit for culprit in culprits if culprit.kind != "link"]
    shares = [_share(culprit, several, cells, usual) for culprit in several]
    worse = []
    for cell in dict.fromkeys(cell for culprit in several for cell in culprit.cells):
        if _is_worse(cells[cell], [share for share in shares if share.culprit.covers(cell)], usual):
            worse.append(cell)
    for culprit in several:
        covered = culprit.charged(cells, set(worse))
        if covered.bad_share() > REMAINDER_SHARE:
            worse = [cell for cell in worse if cell not in covered.cells]
    places = [culprit.place() for culprit in culprits]
    remaining = []
    for other in explain(cells, worse):
        if other.place() not in places:
            covering = [culprit for culprit in several if any(map(culprit.covers, other.cells))]
            names = tuple(culprit.nodes[0] if len(culprit.nodes) == 1 else ALL_LINKS for culprit in covering)
            remaining.append(replace(other, besides=names))
    return remaining


def _share(culprit: Culprit, culprits: Sequence[Culprit], cells: Mapping[Cell, CellState], usual: Norms) -> Share:
    """Take the share from the cells that no other culprit touches, where there are such."""
    others = [other for other in culprits if other is not culprit]
    alone = [cell for cell in culprit.cells if not any(other.covers(cell) for other in others)]
    states = [cells[cell] for cell in alone or culprit.cells]
    values: dict[tuple[Metric, bool], list[float]] = {}
    for state in states:
        for metric, start, value in state.figures():
            if metric.name in usual:
                values.setdefault((metric, _is_outward(culprit, start)), []).append(value)
    factors = {}
    is_limit = True
    for (metric, outward), values_of_way in values.items():
        norm = usual[metric.name].usual
        factor = max(1.0, (norm / median(values_of_way)) ** metric.better)
        factors[(metric, outward)] = factor
        if metric is not BANDWIDTH and factor >= metric.ratio:
            is_limit = False
    dead = sum(state.is_dead for state in states)
    return Share(culprit, factors, is_limit, is_dead=2 * dead > len(states))


def _is_outward(culprit: Culprit, start: str) -> bool:
    """Tell whether the way starts at the culprit; any way does, where the culprit is not a single node."""
    return culprit.kind not in ("node", "node-rail") or culprit.nodes[0] == start


def _is_worse(state: CellState, shares: Sequence[Share], usual: Norms) -> bool:
    """Tell whether it is out of the norm without the shares; or dead, where each share is of what is only slow."""
    if state.is_dead:
        return not any(share.is_dead for share in shares)
    values = {
        (metric.name, start): value * _joint_factor(metric, start, shares) ** metric.better
        for metric, start, value in state.figures()
    }
    return bool(symptoms(replace(state, values=values), usual, Floors()))


def _joint_factor(metric: Metric, start: str, shares: Sequence[Share]) -> float:
    """Tell how much worse all shares make a way: of limits the largest, times every other one."""
    limit = 1.0
    product = 1.0
    for share in shares:
        factor = share.factors.get((metric, _is_outward(share.culprit, start)), 1.0)
        if share.is_limit:
            limit = max(limit, factor)
        else:
            product *= factor
    return limit * product
