"""The state of a run as OpenMetrics text: what Prometheus scrapes, or node-exporter's textfile collector reads (pure).

prometheus-client writes the text (the extra `metrics`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from allranks.runs.directory import STATES as ENDED_AS
from allranks.runs.documents import GOING_ON, OVER, RankStatus, ResultDocument, StatusDocument

UP = ("started", "initialised")  # states of a rank whose process runs
STATES = (*GOING_ON, *OVER)
LABELS = ["run", "node", "rank"]


class RunFigures(NamedTuple):
    """What metrics say of a run: its last status, how often it was retried and hung, and its end if it is over."""

    status: StatusDocument
    restarts: int = 0
    hangs: int = 0
    result: ResultDocument | None = None


class FiguresCollector(Collector):
    """The figures of one run as families; `figures` gives those of the moment."""

    def __init__(self, figures: Callable[[], RunFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield every family of the run."""
        figures = self._figures()
        status = figures.status
        run = status.run
        ranks = [(node, rank) for node in status.nodes for rank in node.ranks]
        result = figures.result
        now = status.state if result is None else ENDED_AS.get(result.exit, "failed")
        state = StateSetMetricFamily("allranks_run_state", "State of the run.", labels=["run"])
        state.add_metric([run], {name: name == now for name in STATES})
        yield state
        up = sum(rank.state in UP for _, rank in ranks)
        yield _of_run("allranks_ranks_up", "Ranks whose process runs.", run, up)
        yield _of_run("allranks_world_size", "Ranks of the run.", run, status.world_size)
        yield _of_run("allranks_attempt", "Number of the present attempt, from 0.", run, status.attempt)
        yield _of_run("allranks_status_seconds", "When this was so, in unix seconds.", run, status.t)
        yield _counter("allranks_restarts", "Attempts that followed a failure.", run, figures.restarts)
        yield _counter("allranks_hangs", "Hangs that were confirmed.", run, figures.hangs)
        steps = [rank.step for _, rank in ranks if rank.step is not None]
        yield _of_run("allranks_step", "Furthest step of any rank.", run, max(steps, default=None))
        yield _of_run("allranks_goodput_ratio", "Share of the time that went into useful steps.", run, status.goodput)
        has_roles = any(node.role for node, _ in ranks)  # two roles have the same numbers of ranks
        for name, text, value_of in OF_RANKS:
            family = GaugeMetricFamily(name, text, labels=[*LABELS, "role"] if has_roles else LABELS)
            for node, rank in ranks:
                value = value_of(rank)
                if value is not None:
                    roles = [node.role] if has_roles else []
                    family.add_metric([run, node.name, str(rank.rank), *roles], float(value))
            yield family
        yield from _end(run, result)


def _end(run: str, result: ResultDocument | None) -> Iterator[Metric]:
    if result is None:
        return
    yield _of_run("allranks_exit_code", "Exit code of the run, once it is over.", run, result.exit)
    verdict = result.verdict
    if verdict is None:
        return
    family = InfoMetricFamily("allranks_verdict", "Cause of the failure, with its place.", labels=["run"])
    where = verdict.finding.where
    place = {"role": where.role or None, "node": where.node, "rank": where.rank}
    shown = {name: str(value) for name, value in place.items() if value is not None}
    family.add_metric([run], {"cause": verdict.cause or "unknown", **shown})
    yield family


# Figures that each rank has: name, text, and the value, None where it is unknown.
OF_RANKS: tuple[tuple[str, str, Callable[[RankStatus], float | None]], ...] = (
    ("allranks_rank_step", "Step of the rank.", lambda rank: rank.step),
    ("allranks_rank_steps_per_second", "Steps a second of the rank.", lambda rank: rank.rate),
    ("allranks_rank_collectives_per_second", "Collectives a second of the rank.", lambda rank: rank.collectives),
    (
        "allranks_rank_lateness_seconds",
        "How late the rank comes to collectives, as a median.",
        lambda rank: rank.lateness_s,
    ),
    ("allranks_rank_last_output_seconds", "When the rank wrote last, in unix seconds.", lambda rank: rank.last_output),
)


def _of_run(name: str, text: str, run: str, value: float | None) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["run"])
    if value is not None:
        family.add_metric([run], value)
    return family


def _counter(name: str, text: str, run: str, value: int) -> Metric:
    family = CounterMetricFamily(name, text, labels=["run"])
    family.add_metric([run], value)
    return family


def openmetrics_text(figures: RunFigures) -> bytes:
    """Write the figures as OpenMetrics 1.0 text."""
    registry = CollectorRegistry()
    registry.register(FiguresCollector(lambda: figures))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]  # the library's
    return text
