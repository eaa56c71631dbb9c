"""What is usual in this cluster, and which figures are far from it (pure).

Figures are compared as logarithms: a factor is a distance, and jitter, which multiplies, is symmetric. The
usual value is the median over the faster half of the nodes (of the rails, too, where there are several), so that
it holds while fewer than half are bad, also with three nodes, where one bad node spoils two pairs of three. The
spread is the median absolute deviation there, times 1.4826 (the standard deviation of a normal distribution).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from .measure import Cell, Floors, Measurement, Way, bits, span

MAD_TO_SIGMA = 1.4826
MIN_SPREAD = 0.09  # of the logarithm: a handful of samples can agree by chance
FEW_NODES = 4  # below, the usual value rests on one pair or on none but the suspect itself:
FEW_FACTOR = 1.5  # the ratios are so much larger
ENOUGH_TO_BE_QUIET = 10  # values: a spread of fewer may be small by chance


@dataclass(frozen=True)
class Metric:
    """A figure that is judged. A value is bad when it is worse than usual by the factor `ratio` and by `spreads`
    times the spread, whichever is more, and by `excess` in its own unit. Where `quiet` times the spread is less
    than the ratio, that takes its place: a cluster without noise shows smaller faults."""

    name: str
    better: int  # 1: more is better; -1: less is better
    ratio: float
    spreads: float
    excess: float
    quiet: float = math.inf


# 2.5: with 25 % of jitter and 10 % that stays, clean links of a shared machine were steadily at 0.46-0.49 of the
# median in 3 of 400 simulated clusters. 3 spreads: 0.1 % of the samples of a clean link; the re-test removes these.
# 6 spreads in a quiet cluster: a factor of 1.7 with `MIN_SPREAD`, so a NIC that came up at half its rate is seen.
BANDWIDTH = Metric("bandwidth", 1, 2.5, 3.0, 0.0, quiet=6.0)
# 4: another rack or switch is 2-3 times as far. 200 µs: less is what the scheduler of a busy node adds.
LATENCY = Metric("latency", -1, 4.0, 4.0, 200e-6)
# Tails vary by factors of 2-5 by themselves; a lost packet costs 200 ms (TCP_RTO_MIN), a stall seldom half of it.
TAIL = Metric("tail", -1, 10.0, 4.0, 0.1)
METRICS = (LATENCY, BANDWIDTH, TAIL)  # the first that is bad says it: delay lowers TCP's bandwidth, not the reverse


def value_of(way: Way, metric: Metric) -> float | None:
    """The way's figure; None where absent or not a positive number."""
    found: float | None = getattr(way, metric.name)
    return found if found is not None and 0 < found < math.inf else None


def shown(metric: Metric, value: float) -> str:
    """The value for people."""
    return bits(value) if metric is BANDWIDTH else span(value)


@dataclass(frozen=True)
class State:
    """What all samples of a cell say together: the medians of each way, and dead where half or more were.

    `values` has (metric's name, node where the way starts) → median; `reason` is that of the last dead sample.
    """

    cell: Cell
    samples: int
    dead: int
    reason: str
    values: Mapping[tuple[str, str], float]
    interfaces: Mapping[str, str]

    @property
    def is_dead(self) -> bool:
        """Nothing, or hardly anything, went through."""
        return 2 * self.dead >= self.samples


def states(measurements: Iterable[Measurement]) -> dict[Cell, State]:
    """The state of each cell, in the order of the measurements."""
    by_cell: dict[Cell, list[Measurement]] = {}
    for item in measurements:
        by_cell.setdefault(item.cell(), []).append(item)
    return {cell: _state(cell, items) for cell, items in by_cell.items()}


def _state(cell: Cell, items: Sequence[Measurement]) -> State:
    alive, dead = [m for m in items if not m.dead], [m for m in items if m.dead]
    values = {}
    for metric in METRICS:
        for start in cell[:2]:
            found = [v for m in alive if (v := value_of(m.way(start), metric)) is not None]
            if found:
                values[(metric.name, start)] = median(found)
    names = {node: name for node in cell[:2] for m in items if (name := m.interface(node))}
    return State(cell, len(items), len(dead), dead[-1].dead if dead else "", values, names)


@dataclass(frozen=True)
class Norm:
    """The usual value of a metric and how far (in logarithms) a value may lie on the bad side."""

    metric: Metric
    usual: float
    spread: float
    limit: float

    def severity(self, value: float) -> float:
        """How bad a value is: above 1 it is out of the norm."""
        away = self.metric.better * (math.log(self.usual) - math.log(value))
        return away / self.limit if self.metric.better * (self.usual - value) > self.metric.excess else 0.0


Norms = Mapping[str, Norm]


def norms(cells: Mapping[Cell, State]) -> dict[str, Norm]:
    """The norm of each metric that was measured."""
    found = {}
    for metric in METRICS:
        values = {(*cell, way): v for cell, s in cells.items() for way in cell[:2]
                  if not s.is_dead and (v := s.values.get((metric.name, way))) is not None}  # fmt: skip
        if values:
            found[metric.name] = _norm(metric, values)
    return found


def _norm(metric: Metric, values: Mapping[tuple[str, str, int, str], float]) -> Norm:
    nodes = len({node for key in values for node in key[:2]})
    logs = {key: metric.better * math.log(value) for key, value in values.items()}  # more is better
    if nodes < 3:
        kept = [max(logs.values())]  # the better way, or rail, of the only link
    else:
        kept = list(_faster(logs).values())
    middle = median(kept)
    spread = max(MIN_SPREAD, MAD_TO_SIGMA * median(abs(x - middle) for x in kept))
    ratio = math.log(metric.ratio * (FEW_FACTOR if nodes < FEW_NODES else 1.0))
    quiet = metric.quiet * spread if len(kept) >= ENOUGH_TO_BE_QUIET else math.inf
    limit = max(min(ratio, quiet), metric.spreads * spread)
    return Norm(metric, math.exp(metric.better * middle), spread, limit)


def _faster(logs: Mapping[tuple[str, str, int, str], float]) -> Mapping[tuple[str, str, int, str], float]:
    """The values among the faster nodes (more than half of them, at least two) on the faster half of the rails."""
    links: dict[tuple[str, str], list[float]] = {}
    rails: dict[int, list[float]] = {}
    for key, value in logs.items():
        links.setdefault((key[0], key[1]), []).append(value)
        rails.setdefault(key[2], []).append(value)
    nodes: dict[str, list[float]] = {}
    for link, values in links.items():
        for node in link:
            nodes.setdefault(node, []).append(fmean(values))
    middle = {node: median(values) for node, values in nodes.items()}  # one bad link does not make a slow node
    speed = {rail: fmean(values) for rail, values in rails.items()}
    good = set(sorted(nodes, key=lambda node: -middle[node])[: len(nodes) // 2 + 1])
    fast = set(sorted(rails, key=lambda rail: -speed[rail])[: (len(rails) + 1) // 2])
    chosen = {key: v for key, v in logs.items() if key[0] in good and key[1] in good and key[2] in fast}
    return chosen or logs  # of many nodes, the faster may not have been measured with each other


@dataclass(frozen=True)
class Symptom:
    """A figure of a cell that is bad: `start` is where its way starts, `floor` the user's own limit if that is it."""

    metric: Metric
    start: str
    value: float
    usual: float
    severity: float
    floor: float | None = None


def symptoms(state: State, usual: Norms, floors: Floors) -> list[Symptom]:
    """What is bad about a cell that is not dead, by the order of `METRICS`, the worse way first."""
    found = []
    for metric in METRICS:
        mine = []
        for start in state.cell[:2]:
            value, norm = state.values.get((metric.name, start)), usual.get(metric.name)
            if value is None or norm is None:
                continue
            severity, floor = norm.severity(value), getattr(floors, metric.name, None)
            missed = floor is not None and metric.better * (floor - value) > 0
            if severity > 1 or missed:
                mine.append(Symptom(metric, start, value, norm.usual, severity, floor if missed else None))
        found += sorted(mine, key=lambda item: -item.severity)
    return found
