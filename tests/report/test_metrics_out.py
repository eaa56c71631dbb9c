"""Metrics of a run: what prometheus-client's own parser reads, and a file. tests/local/test_outlets.py has a scrape."""

import contextlib
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from allranks.errors import UsageError
from allranks.findings import Finding, Verdict, Where
from allranks.report.metrics_out import MetricsFile, MetricsPort
from allranks.report.openmetrics import RunFigures, openmetrics_text
from allranks.runs.documents import NodeStatus, RankStatus, ResultDocument, StatusDocument

NODES = (
    NodeStatus("h1", 0, None, "running", (RankStatus(0, 0, "initialised", 11, 40, 2.5, 999.0),)),
    NodeStatus('h"2\n', 1, None, "running", (RankStatus(1, 0, "failed", 12, None, None, None),)),
)
STATUS = StatusDocument("run-1", "running", 1000.5, 1, None, 2, NODES)
FIGURES = RunFigures(STATUS, restarts=1, hangs=2)
VERDICT = Verdict(Finding(where=Where(node="h1", rank=0)), "rank-killed")


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Value by name and labels but the run's, as the parser of prometheus-client reads them."""
    values = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            assert sample.labels["run"] == "run-1"
            labels = (f"{name}={value}" for name, value in sample.labels.items() if name != "run")
            values[(sample.name, *labels)] = sample.value
    return values


def test_the_figures_are_read_by_the_parser_of_prometheus() -> None:
    values = samples(openmetrics_text(FIGURES))
    assert values[("allranks_run_state", "allranks_run_state=running")] == 1
    assert values[("allranks_run_state", "allranks_run_state=failed")] == 0
    assert values[("allranks_ranks_up",)] == 1
    assert (values[("allranks_world_size",)], values[("allranks_attempt",)], values[("allranks_step",)]) == (2, 1, 40)
    assert (values[("allranks_restarts_total",)], values[("allranks_hangs_total",)]) == (1, 2)
    assert values[("allranks_rank_steps_per_second", "node=h1", "rank=0")] == 2.5
    assert ("allranks_rank_step", 'node=h"2\n', "rank=1") not in values, "an unknown step is no figure"
    assert not any(name[0].startswith(("allranks_exit", "allranks_verdict")) for name in values)


def test_ranks_of_two_roles_have_figures_of_their_own() -> None:
    """Both have a rank 0."""
    (node, other) = (replace(NODES[0], name=name, role=name) for name in ("server", "trainer"))
    values = samples(openmetrics_text(RunFigures(replace(STATUS, nodes=(node, other)))))
    assert values[("allranks_rank_step", "node=trainer", "rank=0", "role=trainer")] == 40


def test_the_end_and_its_cause_are_figures() -> None:
    values = samples(openmetrics_text(FIGURES._replace(result=ResultDocument("run-1", exit=1, verdict=VERDICT))))
    assert values[("allranks_exit_code",)] == 1
    assert values[("allranks_verdict_info", "cause=rank-killed", "node=h1", "rank=0")] == 1


@pytest.mark.parametrize(("code", "state"), [(0, "done"), (1, "failed"), (143, "stopped")])
def test_a_run_that_is_over_has_one_state(code: int, state: str) -> None:
    """The last status is written before the end, and every state was 0."""
    figures = FIGURES._replace(status=replace(STATUS, state="ended"), result=ResultDocument("run-1", exit=code))
    found = samples(openmetrics_text(figures))
    states = {labels[0]: value for (name, *labels), value in found.items() if "state" in name}
    assert [label for label, value in states.items() if value] == [f"allranks_run_state={state}"]


def test_a_port_that_is_taken_is_refused_with_a_hint() -> None:
    port = MetricsPort("127.0.0.1", 0)
    number = int(port.url.split(":")[2].split("/")[0])
    says = rf"cannot listen on 127.0.0.1 port {number} \(.*\)\nhint: --metrics-port 0"
    with contextlib.closing(port), pytest.raises(UsageError, match=says):
        MetricsPort("127.0.0.1", number)


def test_the_file_is_replaced_at_times_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "allranks.prom"
    file = MetricsFile(path)
    file.show(FIGURES, 100.0)
    file.show(FIGURES._replace(restarts=5), 101.0)
    assert samples(path.read_bytes())[("allranks_restarts_total",)] == 1
    file.show(FIGURES._replace(restarts=6, result=ResultDocument("run-1", exit=0)), 102.0)
    assert samples(path.read_bytes())[("allranks_restarts_total",)] == 6
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444
    assert list(tmp_path.iterdir()) == [path]
