"""What is usual in this cluster, and which figures are far from it (pure).

Figures are compared as logarithms: a factor is a distance, and jitter, which multiplies, is symmetric. The usual value
is the median over the faster half of the nodes, so that it holds while fewer than half are bad, also with three nodes,
where one bad node spoils two pairs of three. The spread is the median absolute deviation there, times 1.4826 (the
standard deviation of a normal distribution).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Mapping, Tuple

from allranks.text import format_bit_rate, format_time, group

from ..metric_rows import Cell, Measurement

MAD_TO_SIGMA = 1.4826
MIN_SPREAD = 0.09  # of the logarithm: a handful of samples can agree by chance
FEW_NODES = 4  # below, the usual value rests on one pair or on none but the suspect itself:
FEW_FACTOR = 1.5  # the ratios are so much larger
ENOUGH_TO_BE_QUIET = 10  # values: a spread of fewer may be small by chance

OneWay = Tuple[str, str, str]  # a cell, and the node where a way through it starts


@dataclass(frozen=True)
class Metric:
    """A figure that is judged.

    A value is bad when it is worse than usual by the factor `ratio` and by `spreads` times the spread, whichever is
    more, and by `excess` in its own unit. Where `quiet` times the spread is less than the ratio, that takes its place:
    a cluster without noise shows smaller faults.
    """

    name: str
    better: int  # 1: more is better; -1: less is better
    ratio: float
    spreads: float
    excess: float
    quiet: float = math.inf

    def format(self, value: float) -> str:
        """Write a value: `9.4 Gbit/s`, `85 µs`."""
        if self.name == "bandwidth":
            return format_bit_rate(value)
        return format_time(value)


# 2.5: with 25 % of jitter and 10 % that stays, clean links of a shared machine were steadily at 0.46-0.49 of the
# median in 3 of 400 simulated clusters. 3 spreads: 0.1 % of the samples of a clean link; the re-test removes these.
# 6 spreads in a quiet cluster: a factor of 1.7 with `MIN_SPREAD`, so a NIC that came up at half its rate is seen.
BANDWIDTH = Metric("bandwidth", 1, 2.5, 3.0, 0.0, quiet=6.0)
# 4: another rack or switch is 2-3 times as far. 200 µs: less is what the scheduler of a busy node adds.
LATENCY = Metric("latency", -1, 4.0, 4.0, 200e-6)
# Tails vary by factors of 2-5 by themselves; a lost packet costs 200 ms (TCP_RTO_MIN), a stall seldom half of it.
TAIL = Metric("tail", -1, 10.0, 4.0, 0.1)
METRICS = (LATENCY, BANDWIDTH, TAIL)  # the first that is bad says it: delay lowers TCP's bandwidth, not the reverse


@dataclass(frozen=True)
class CellState:
    """What all samples of a cell say together: the medians of each way, and dead where half or more were.

    `values` has (metric's name, node where the way starts) → median; `reason` is that of the last dead sample.
    """

    cell: Cell
    samples: int
    dead: int
    reason: str
    values: Mapping[tuple[str, str], float]

    @property
    def is_dead(self) -> bool:
        """Tell whether nothing, or hardly anything, went through."""
        return 2 * self.dead >= self.samples

    def value(self, metric: Metric, start: str) -> float | None:
        """Give the median of the way that starts at a node; None where it was not measured."""
        return self.values.get((metric.name, start))

    def figures(self) -> Iterator[tuple[Metric, str, float]]:
        """Give what was measured: metric, node where the way starts, median."""
        for metric in METRICS:
            for start in self.cell:
                value = self.value(metric, start)
                if value is not None:
                    yield metric, start, value


def states(measurements: Iterable[Measurement]) -> dict[Cell, CellState]:
    """Give the state of each cell, in the order of the measurements."""
    return {cell: _state(cell, samples) for cell, samples in group(measurements, Measurement.cell).items()}


def _state(cell: Cell, samples: Sequence[Measurement]) -> CellState:
    reasons = [sample.dead for sample in samples if sample.dead]
    values: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        for start in cell:
            for metric in METRICS:
                value: float | None = getattr(sample.way(start), metric.name)
                if value is not None and 0 < value < math.inf and not sample.dead:
                    values.setdefault((metric.name, start), []).append(value)
    medians = {key: median(samples_of_way) for key, samples_of_way in values.items()}
    return CellState(cell, len(samples), len(reasons), ["", *reasons][-1], medians)


@dataclass(frozen=True)
class Norm:
    """The usual value of a metric and how far (in logarithms) a value may lie on the bad side."""

    metric: Metric
    usual: float
    limit: float

    def severity(self, value: float) -> float:
        """Tell how bad a value is: above 1 it is out of the norm."""
        better = self.metric.better
        if better * (self.usual - value) <= self.metric.excess:
            return 0.0
        return better * (math.log(self.usual) - math.log(value)) / self.limit


Norms = Mapping[str, Norm]
Floors = Mapping[str, float]  # by metric: the worst value that the user wants of any link, whatever the others have


def norms(cells: Mapping[Cell, CellState]) -> dict[str, Norm]:
    """Find the norm of each metric that was measured."""
    logs: dict[str, dict[OneWay, float]] = {metric.name: {} for metric in METRICS}  # more is better
    for cell, state in cells.items():
        if not state.is_dead:
            for metric, start, value in state.figures():
                way = (*cell, start)
                logs[metric.name][way] = metric.better * math.log(value)
    return {metric.name: _norm(metric, logs[metric.name]) for metric in METRICS if logs[metric.name]}


def _norm(metric: Metric, logs: Mapping[OneWay, float]) -> Norm:
    nodes = len({node for key in logs for node in key[:2]})
    if nodes < 3:
        usual_logs = [max(logs.values())]  # the better way of the only link
    else:
        usual_logs = _faster(logs)
    middle = median(usual_logs)
    spread = max(MIN_SPREAD, MAD_TO_SIGMA * median(abs(log - middle) for log in usual_logs))
    ratio = math.log(metric.ratio)
    if nodes < FEW_NODES:
        ratio += math.log(FEW_FACTOR)
    if len(usual_logs) >= ENOUGH_TO_BE_QUIET:
        ratio = min(ratio, metric.quiet * spread)
    return Norm(metric, math.exp(metric.better * middle), max(ratio, metric.spreads * spread))


def _faster(logs: Mapping[OneWay, float]) -> list[float]:
    """Choose the values among the faster nodes (more than half, at least two)."""
    links = {link: fmean(map(logs.__getitem__, ways)) for link, ways in group(logs, lambda way: way[:2]).items()}
    nodes: dict[str, list[float]] = {}
    for link, log in links.items():
        for node in link:
            nodes.setdefault(node, []).append(log)
    # By the median: one bad link does not make a slow node.
    faster_nodes = {*sorted(nodes, key=lambda node: -median(nodes[node]))[: len(nodes) // 2 + 1]}
    chosen = [log for key, log in logs.items() if faster_nodes.issuperset(key[:2])]
    return chosen or list(logs.values())  # of many nodes, the faster may not have been measured with each other


@dataclass(frozen=True)
class Symptom:
    """A figure of a cell that is bad: `start` is where its way starts, `floor` the user's own limit if that is it."""

    metric: Metric
    start: str
    value: float
    usual: float
    severity: float
    floor: float | None = None


def symptoms(state: CellState, usual: Norms, floors: Floors) -> list[Symptom]:
    """List what is bad about a cell that is not dead, by the order of `METRICS`, the worse way first."""
    result = []
    for metric, start, value in state.figures():
        norm = usual.get(metric.name)
        if norm is None:
            continue
        severity = norm.severity(value)
        floor = floors.get(metric.name)
        if floor is not None and metric.better * (floor - value) <= 0:
            floor = None
        if severity > 1 or floor is not None:
            result.append(Symptom(metric, start, value, norm.usual, severity, floor))
    return sorted(result, key=lambda symptom: (METRICS.index(symptom.metric), -symptom.severity))
