"""A node speaks for itself and its own ranks, and within bounds: nothing that it sends is another node's."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from allranks.cluster import Cluster, Node
from allranks.cluster.nodes import virtual_cluster
from allranks.engines.ssh import ssh_reach
from allranks.gang import session as sessions
from allranks.gang.controller import Controller
from allranks.gang.links import Member
from allranks.gang.members import RankState
from allranks.gang.states import State
from allranks.protocol.frames import (
    AUDIT,
    FLIGHT,
    METRICS,
    NCCL_LOG,
    NODE_LOG,
    RANK_LOG,
    STACKS,
    TRACE,
    OutputFrame,
    Stream,
)
from allranks.report.live import OutputView
from allranks.runs.nodeledger import NodeRecord, add_records, read_ledger
from allranks.settings import RunSpec


def controller_of(cluster: Cluster, place: Path, **target: Any) -> Controller:
    spec = RunSpec.of(command=("true",), nproc=1, runs_dir=str(place / "runs"), **target)
    return sessions.create(spec, cluster, ssh_reach(spec), dict(os.environ), str(place), OutputView).controller


@pytest.fixture
def controller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Controller:
    """Two nodes, each with one rank that runs."""
    controller = controller_of(virtual_cluster(2), tmp_path, local=2)
    controller.roster.state = State.RUNNING
    controller.context.__dict__["local_nodes"] = frozenset()  # as nodes that are elsewhere: nothing is in place
    for number, node in enumerate(controller.roster.nodes.values()):
        node.ranks = {number: RankState(number, 0)}
        node.owned.add(number)
    return controller


def second(controller: Controller) -> Member:
    return list(controller.links.members.values())[1]


def files(controller: Controller) -> list[str]:
    made = (p for p in controller.run_dir.path.rglob("*rank_*") if p.suffix in (".log", ".txt", ".jsonl"))
    return sorted(p.name for p in made)


def give(controller: Controller, *frames: dict[str, Any] | OutputFrame) -> None:
    controller.take_frames(second(controller), list(frames))


@pytest.mark.parametrize("kind", [RANK_LOG, NCCL_LOG, METRICS, STACKS, FLIGHT, AUDIT])
def test_output_of_another_nodes_rank_is_left_out(controller: Controller, kind: int) -> None:
    give(controller, OutputFrame(Stream(kind, 0, 0), 0, b'{"loss": 1}\n'))
    assert files(controller) == []
    give(controller, OutputFrame(Stream(kind, 1, 0), 0, b'{"loss": 1}\n'))
    assert len(files(controller)) == 1
    assert controller.recording.undecodable.counts == {"messages of local1": 1}


CALLS = {"base": 1, "groups": []}
OF_RANK_0: list[dict[str, Any]] = [
    {"type": "started", "rank": 0, "pid": 5, "attempt": 0, "t": 1.0},
    {"type": "exit", "rank": 0, "attempt": 0, "code": 1, "t": 1.0},
    {"type": "exit", "rank": 1, "attempt": 0, "code": 1, "t": 1.0, "calls": {"0": []}},
    {"type": "stacks", "ranks": {"0": {"stack": "File x", "state": "S"}}},
    {"type": "usage", "t": 1.0, "seconds": 10.0, "devices": {"gpus": [{"address": "a", "ranks": [0]}]}},
    {"type": "profiled", "ranks": {"0": {"seconds": 1.5, "size": 9}}},
    {"type": "counters", "ranks": {"0": {"cpu": 1.5, "counters": {}}}},
    {"type": "call-times", "ranks": {"0": CALLS}, "t": 1.0},
    {"type": "call-times", "ranks": {"1": CALLS}, "links": [{"rank": 0, "peer": "10.0.0.1"}], "t": 1.0},
    {"type": "call-times", "ranks": {"1": CALLS}, "suspects": {"0": {"samples": []}}, "t": 1.0},
    {"type": "saving", "attempt": 0, "request": 1, "phase": "", "step": 5, "ranks": {"0": {"calls": 1}}},
    {"type": "fault", "id": "start-failed", "message": "no", "rank": 0, "t": 1.0},
    {"type": "dropped", "kind": 0, "rank": 0, "attempt": 0, "total": 5},
]


@pytest.mark.parametrize("message", OF_RANK_0, ids=lambda message: str(message["type"]))
def test_words_about_another_nodes_rank_are_left_out(controller: Controller, message: dict[str, Any]) -> None:
    fed = list[object]()
    controller.feed_quietly = fed.append  # type: ignore[method-assign]
    give(controller, message)
    assert fed == [] and controller.recording.dropped == {}
    assert controller.recording.undecodable.counts == {"messages of local1": 1}


def test_a_trace_has_the_number_of_its_profile_and_not_of_an_attempt(controller: Controller) -> None:
    streams = (Stream(TRACE, rank, number) for rank in (0, 1) for number in (7, 60_000))
    give(controller, *(OutputFrame(stream, 0, b"x") for stream in streams))
    made = [path.name for path in controller.run_dir.path.rglob("*.json.gz")]
    assert made == ["profile_7_rank_001.json.gz"]


def test_streams_of_a_node_are_those_of_its_ranks(controller: Controller) -> None:
    streams = (Stream(kind, rank, attempt) for kind in range(9) for rank in range(1, 200) for attempt in (0, 1, 60_000))
    give(controller, *(OutputFrame(stream, 0, b"x") for stream in streams))
    give(controller, OutputFrame(Stream(77, 1, 0), 0, b"x"))
    assert len(files(controller)) == 6
    give(controller, OutputFrame(Stream(NODE_LOG, 0, 0), 0, b"of the node\n"))
    assert [p.read_bytes() for p in controller.run_dir.path.rglob("node.log")] == [b"of the node\n"]


def test_a_frame_far_behind_the_others_makes_no_hole_for_every_reader(controller: Controller) -> None:
    """One at 8 TiB made `report` and `logs` read for ever."""
    stream = Stream(RANK_LOG, 1, 0)
    frames = [OutputFrame(stream, 8 << 40, b"x"), OutputFrame(stream, 0, b"begin\n"), OutputFrame(stream, 16, b"end\n")]
    give(controller, *frames)
    (log,) = controller.run_dir.path.rglob("rank_001.log")
    assert log.read_bytes() == b"begin\n" + bytes(10) + b"end\n"
    assert controller.recording.undecodable.counts == {"messages of local1": 1}


def test_what_one_node_may_have_written_down_is_bounded_and_its_beats_are_heard(controller: Controller) -> None:
    refused = [{"type": "refused", "source": f"text {n}", "why": "x", "t": 1.0} for n in range(20_000)]
    give(controller, *refused)
    events = controller.run_dir.path / "events.jsonl"
    assert events.stat().st_size < 100_000
    assert sum(controller.recording.undecodable.counts.values()) == 20_000, "none goes uncounted"
    template = {"type": "template", "state": "off", "attempt": 0, "why": "w" * 100_000}
    give(controller, *[template] * 300)
    assert events.stat().st_size < 6 << 20
    said = [str(e.get("message")) for e in controller.run_dir.read_lines()[0]]
    assert len([text for text in said if "too much" in text]) == 1
    controller.roster.attempt = 1  # which the reports of its ranks decide too
    give(controller, *[{**template, "attempt": 1}] * 300)
    assert 5 < sum(e["event"] == "template" and e["attempt"] == 1 for e in controller.run_dir.read_lines()[0]) < 15
    give(controller, {"type": "pong", "sent": time.time(), "t": time.time()})
    assert controller.roster.nodes[second(controller).node.name].clock.delay is not None


@pytest.mark.parametrize("name", ["h" * 3_000_000, "a\nVERDICT all is well", "$(reboot)", "a\u202eb", "../x"])
def test_what_no_host_is_called_is_no_name(tmp_path: Path, name: str) -> None:
    cluster = Cluster((Node(0, "10.9.9.9", "10.9.9.9"),), "--hosts")
    controller = controller_of(cluster, tmp_path, hosts="10.9.9.9")
    (member,) = controller.links.members.values()
    controller.take_frames(member, [{"type": "hello", "protocol": 1, "node_dir": "/tmp/a", "hostname": name}])
    assert [m.node.name for m in controller.links.members.values()] == ["10.9.9.9"]
    assert (controller.run_dir.path / "events.jsonl").stat().st_size < 10_000


def test_a_record_that_no_reader_would_take_is_left_out_of_the_ledger(tmp_path: Path) -> None:
    """It recursed without end, which was exit 70 of a run that had succeeded."""
    path = tmp_path / "nodes.jsonl"
    records = [NodeRecord(1.0, "run", "run", "h" * 5000), NodeRecord(2.0, "run", "run", "h2", message="m" * 5000)]
    assert add_records(path, records)
    assert [(record.name, record.message) for record in read_ledger(path)] == [("h2", "")]
