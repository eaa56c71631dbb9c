"""What remains of the bad cells once each culprit's own share is taken out (pure).

Two slow nodes explain that the link between them is slow, but not that it is ten times slower than their other
links. A culprit's share is how much worse than usual its cells are, in the middle; a cell that is still bad after
the shares of all that touch it are taken out has a fault of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from .blame import ALL_LINKS, Culprit, covers, explain
from .measure import Cell, Floors
from .norms import BANDWIDTH, METRICS, Metric, Norms, State, symptoms

# Of a culprit's cells: where more are far from its middle, they are its own spread (a node that fails now and then).
REMAINDER_SHARE = 1 / 3


@dataclass(frozen=True)
class _Share:
    """How much worse than usual a culprit's cells are, as factors (1: as usual), by metric and by direction.

    `is_limit`: only its bandwidth is bad. Two limits in a row give the lower one; delays and losses add up.
    """

    culprit: Culprit
    factors: Mapping[tuple[Metric, bool], float]
    is_limit: bool
    is_dead: bool


def remaining_culprits(cells: Mapping[Cell, State], culprits: Sequence[Culprit], usual: Norms) -> list[Culprit]:
    """What is at fault besides these culprits, in the cells that they explain."""
    several = [culprit for culprit in culprits if culprit.kind != "link"]
    shares = [_share(culprit, several, cells, usual) for culprit in several]
    explained = {cell for culprit in several for cell in culprit.cells}
    worse: list[Cell] = []
    for cell, state in cells.items():
        touching = [share for share in shares if covers(share.culprit, cell)]
        if cell in explained and _is_worse(state, touching, usual):
            worse.append(cell)
    for culprit in several:
        own = [cell for cell in worse if covers(culprit, cell)]
        touched = [cell for cell in cells if covers(culprit, cell)]
        if len(own) > REMAINDER_SHARE * len(touched):
            worse = [cell for cell in worse if cell not in own]
    named = {(culprit.kind, culprit.nodes, culprit.rail) for culprit in culprits}
    others = [c for c in explain(list(cells), worse) if (c.kind, c.nodes, c.rail) not in named]
    return [replace(other, besides=_besides(other, several)) for other in others]


def _besides(other: Culprit, culprits: Sequence[Culprit]) -> tuple[str, ...]:
    """The culprits in whose cells the other one lies, in words."""
    covering = [culprit for culprit in culprits if any(covers(culprit, cell) for cell in other.cells)]
    return tuple(culprit.nodes[0] if len(culprit.nodes) == 1 else ALL_LINKS for culprit in covering)


def _share(culprit: Culprit, culprits: Sequence[Culprit], cells: Mapping[Cell, State], usual: Norms) -> _Share:
    """Taken from the cells that no other culprit touches, where there are such."""
    others = [other for other in culprits if other is not culprit]
    alone = [cell for cell in culprit.cells if not any(covers(other, cell) for other in others)]
    own = [cells[cell] for cell in alone or culprit.cells]
    factors: dict[tuple[Metric, bool], float] = {}
    for metric in METRICS:
        norm = usual.get(metric.name)
        if norm is None:
            continue
        for outward in (True, False):
            values = [
                value
                for state in own
                for start in state.cell[:2]
                if _is_outward(culprit, start) is outward
                and (value := state.values.get((metric.name, start))) is not None
            ]
            if values:
                factors[(metric, outward)] = _worse_by(metric, median(values), norm.usual)
    is_limit = all(factor < metric.ratio for (metric, _), factor in factors.items() if metric is not BANDWIDTH)
    dead = sum(state.is_dead for state in own)
    return _Share(culprit, factors, is_limit, is_dead=2 * dead > len(own))


def _is_outward(culprit: Culprit, start: str) -> bool:
    """The way starts at the culprit; any way, where the culprit is no single node."""
    return culprit.kind not in ("node", "node-rail") or culprit.nodes[0] == start


def _worse_by(metric: Metric, value: float, usual: float) -> float:
    """A factor of 1 or more."""
    return max(1.0, usual / value if metric.better > 0 else value / usual)


def _is_worse(state: State, shares: Sequence[_Share], usual: Norms) -> bool:
    """Still out of the norm when the shares are taken out; dead, where a share is of what is only slow."""
    if state.is_dead:
        return not any(share.is_dead for share in shares)
    values: dict[tuple[str, str], float] = {}
    for metric in METRICS:
        for start in state.cell[:2]:
            value = state.values.get((metric.name, start))
            if value is not None:
                factor = _joint_factor(metric, start, shares)
                values[(metric.name, start)] = value * factor if metric.better > 0 else value / factor
    return bool(symptoms(replace(state, values=values), usual, Floors()))


def _joint_factor(metric: Metric, start: str, shares: Sequence[_Share]) -> float:
    """How much worse all shares make a way: of limits the largest, times every other one."""
    limit = 1.0
    product = 1.0
    for share in shares:
        factor = share.factors.get((metric, _is_outward(share.culprit, start)), 1.0)
        if share.is_limit:
            limit = max(limit, factor)
        else:
            product *= factor
    return limit * product


def suspected_before(culprit: Culprit, before: Collection[Culprit]) -> bool:
    """The same place was a suspect there, too."""
    return any((c.kind, c.nodes, c.rail) == (culprit.kind, culprit.nodes, culprit.rail) for c in before)
