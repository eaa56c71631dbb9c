"""Metrics of a run: what prometheus-client's own parser reads, over a port that strangers use, and in a file."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.campaign import Campaign
from tests.fuzz.nasty import flipped

from allranks.errors import UsageError
from allranks.findings import Finding, Verdict, Where
from allranks.report.metrics_out import CLIENTS, PATIENCE, MetricsFile, MetricsPort
from allranks.report.openmetrics import RunFigures, openmetrics_text
from allranks.runs.documents import NodeStatus, RankStatus, ResultDocument, StatusDocument

STATUS = StatusDocument(
    "run-1",
    "running",
    1000.5,
    1,
    None,
    2,
    (
        NodeStatus("h1", 0, None, "running", (RankStatus(0, 0, "initialised", 11, 40, 2.5, 999.0),)),
        NodeStatus('h"2\n', 1, None, "running", (RankStatus(1, 0, "failed", 12, None, None, None),)),
    ),
)
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


@pytest.fixture
def port() -> Iterator[MetricsPort]:
    port = MetricsPort("127.0.0.1", 0)
    yield port
    port.close()


def connect(port: MetricsPort) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", int(port.url.split(":")[2].split("/")[0])), timeout=60)
    client.settimeout(60)
    return client


def answer(port: MetricsPort, client: socket.socket, now: float = 0.0) -> bytes:
    """Serve until the port has closed the connection."""
    client.setblocking(False)
    data = b""
    while True:
        port.serve(FIGURES, now)
        try:
            part = client.recv(1 << 20)
        except BlockingIOError:
            continue
        except ConnectionResetError:
            return data
        if not part:
            return data
        data += part


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200"),
        (b"GET /metrics?x=1 HTTP/1.0", b"200"),
        (b"GET /elsewhere HTTP/1.1", b"404"),
        (b"POST /metrics HTTP/1.1", b"400"),
        (b"\xff\x00 \x01", b"400"),
    ],
)
def test_a_scrape_is_answered_and_nonsense_refused(port: MetricsPort, request_line: bytes, status: bytes) -> None:
    client = connect(port)
    client.sendall(request_line + b"\r\nHost: x\r\n\r\n")
    head, _, body = answer(port, client).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert f"Content-Length: {len(body)}".encode() in head
    if status == b"200":
        assert samples(body)[("allranks_ranks_up",)] == 1


@pytest.mark.fuzz
def test_whatever_is_asked_has_one_answer(port: MetricsPort, campaign: Campaign) -> None:
    """Figures come for GET /metrics alone, and every answer is as long as it says."""
    for rng in campaign.cases(100):
        request = flipped(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", rng)
        client = connect(port)
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        head, _, body = answer(port, client).partition(b"\r\n\r\n")
        client.close()
        assert head.startswith(b"HTTP/1.1 ") and f"Content-Length: {len(body)}".encode() in head
        if head.startswith(b"HTTP/1.1 200"):
            assert request.split(b" ")[1].partition(b"?")[0] in (b"/metrics", b"/")


def test_silent_and_endless_clients_do_not_keep_others_waiting(port: MetricsPort) -> None:
    """Those that say nothing are given up after a time, and a request without an end once it is too long."""
    silent = [connect(port) for _ in range(CLIENTS)]
    port.serve(FIGURES, 0.0)
    late = connect(port)
    late.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    port.serve(FIGURES, PATIENCE / 2)
    assert b"200 OK" in answer(port, late, PATIENCE + 1)
    for client in silent:
        assert client.recv(10) == b""
    endless = connect(port)
    endless.sendall(b"x" * 20_000)
    assert b"400 Bad Request" in answer(port, endless, PATIENCE + 2)


def test_a_port_that_is_taken_is_refused_with_a_hint(port: MetricsPort) -> None:
    number = int(port.url.split(":")[2].split("/")[0])
    with pytest.raises(UsageError, match=rf"cannot listen on 127.0.0.1 port {number} \(.*\)\nhint: --metrics-port 0"):
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
    with pytest.raises(UsageError, match="expected a file in a directory that exists"):
        MetricsFile(tmp_path / "absent" / "file")
