"""JSON lines of `join --json` become the run directory that a run from here would have."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.facts import fact

from allranks.protocol.attempts import AttemptEnd
from allranks.protocol.messages import StartedMessage
from allranks.protocol.run_facts import AttemptStart, EndingBegun, NodesAsked, RunStart, Stamped, StepsSeen
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import NodeEntry, ResultDocument, RunOpened, StatusDocument, TimeLedger
from allranks.runs.reading import LogReader
from allranks.runs.replay import LinesView, Replay
from allranks.runs.result import write_result
from allranks.runs.view import View


class Shown(View):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.text: dict[int, bytes] = {}
        self.states: list[str] = []

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        self.text[rank] = self.text.get(rank, b"") + data

    def status(self, status: StatusDocument, now: float) -> None:
        self.states.append(status.state)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    found = RunDirectory.create(tmp_path, "demo", 1795270000.0)
    found.write_document("run.json", {"run": found.name, "nodes": [], "started": 1795270000.0})
    return found


def spoken(*calls: tuple[str, Any]) -> list[str]:
    """What node 0 prints."""
    stream = io.StringIO()
    view = LinesView(stream)
    for name, arguments in calls:
        getattr(view, name)(*arguments)
    return stream.getvalue().splitlines()


def test_an_opening_has_no_empty_spares_and_environment() -> None:
    (line,) = spoken(("opening", [RunOpened("inner")]))
    opening = json.loads(line)["opening"]
    assert opening["run"] == "inner"
    assert not {"spares", "environment"} & opening.keys()


def test_a_whole_run_comes_through(run: RunDirectory) -> None:
    shown = Shown()
    replay = Replay(run, shown, lambda: 5.0)
    nodes = tuple(NodeEntry(name, host=name) for name in ("demo-0", "demo-1"))
    odd = b"\xff\xfe not UTF-8\n"
    lines = spoken(
        ("say", ["join", "2 of 2 nodes are here"]),
        ("opening", [RunOpened("inner", command=("train.py",), nodes=nodes)]),
        ("event", [fact({"t": 1.0, "event": "attempt-start", "attempt": 0})]),
        ("output", ["demo-1", 1, "grün\n".encode(), 1.0]),
        ("output", ["demo-1", 1, odd, 1.0]),
        ("status", [StatusDocument("inner", "running", 1.0), 1.0]),
        ("event", [fact({"t": 2.0, "event": "attempt-start", "attempt": 1})]),
        ("output", ["demo-0", 0, b"again\n", 1.0]),
        ("event", [fact({"t": 3.0, "event": "run-end", "exit": 0})]),
        ("closing", [ResultDocument("inner")]),
    )
    for line in lines:
        assert json.loads(line)["schema"] == 1
        assert replay.result is None
        replay.line(line)
    assert replay.result is not None and replay.result.exit == 0
    write_result(run, replay.result, False)
    replay.close()
    assert (run.path / "logs/node_01_demo-1/rank_001.log").read_bytes() == "grün\n".encode() + odd
    assert (run.path / "logs/attempt_1/node_00_demo-0/rank_000.log").read_bytes() == b"again\n"
    assert [e["event"] for e in run.read_lines()[0]] == ["attempt-start", "attempt-start", "run-end"]
    assert {n: d for n, _, d in LogReader(run).fresh() if n == "demo-0"} == {"demo-0": b"again\n"}
    status, result = run.read_document("status.json"), run.read_document("result.json")
    assert status is not None and (status["run"], status["state"]) == (run.name, "done")
    assert result is not None and (result["run"], result["directory"]) == (run.name, str(run.path))
    assert shown.text[1] == "grün\n".encode() + odd and shown.states == ["running"]


def test_what_is_no_document_is_kept_as_last_words(run: RunDirectory) -> None:
    replay = Replay(run, Shown())
    for line in ("Traceback (most recent call last):", "", "[1, 2]", '{"no": "kind"}', "ImportError: no torch", "{"):
        replay.line(line)
    assert replay.last_words == ["Traceback (most recent call last):", "[1, 2]", "ImportError: no torch", "{"]
    assert replay.result is None and run.read_lines()[0] == []


@pytest.mark.parametrize(
    "output",
    [{"node": "a"}, {"node": "a", "rank": "x"}, {"node": "a", "rank": 0, "base64": "!"}, {"rank": 0, "data": None}],
)
def test_an_odd_output_harms_nothing(run: RunDirectory, output: dict[str, Any]) -> None:
    shown = Shown()
    Replay(run, shown).line(json.dumps({"output": output}))
    assert shown.text == {}
    assert b"".join(path.read_bytes() for path in run.path.glob("logs/**/*.log")) == b""


def test_a_log_that_was_begun_by_another_is_gone_on_with(run: RunDirectory) -> None:
    """After `attach`: this process has not written the first part, nor seen the opening."""
    run.write_document("run.json", {"nodes": [{"name": "demo-0"}, {"name": "demo-1"}]})
    run.write_document("status.json", {"attempt": 2})
    shown = Shown()
    for offset, part in ((0, b"one\n"), (0, b"one\n"), (2, b"e\ntwo\n")):  # what was read last comes again
        replay = Replay(run, shown)
        data = base64.b64encode(part).decode()
        replay.line(json.dumps({"output": {"node": "demo-1", "rank": 1, "offset": offset, "base64": data}}))
        replay.close()
    assert shown.text == {1: b"one\ntwo\n"}
    path = run.path / "logs/attempt_2/node_01_demo-1/rank_001.log"
    assert path.read_bytes() == b"one\ntwo\n"


def test_the_ledger_of_a_run_elsewhere_begins_with_the_wait_for_its_nodes(run: RunDirectory) -> None:
    """Node 0 does not know when it was asked for: its own ledger begins when it was there."""
    for told in (RunStart("demo", "u"), NodesAsked("kubernetes")):
        run.append(Stamped("", 1000.0, None, told))
    replay = Replay(run, Shown(), lambda: 5.0)
    seen = StepsSeen(0, 1045.0, 30, 1075.0)
    moments = [
        (AttemptStart(), 1040.0),
        (StartedMessage(0, 7, 0), 1042.0),
        (seen, 1075.0),
        (EndingBegun("done", 1.0, 0), 1078.0),
        (AttemptEnd(decision="finish"), 1080.0),
    ]
    own = ResultDocument("inner", goodput=0.75, time_ledger=TimeLedger(wall=40.0, useful=30.0))
    for line in spoken(*(("event", [Stamped("demo-0", t, 0, told)]) for told, t in moments), ("closing", [own])):
        replay.line(line)
    assert replay.result is not None
    written = write_result(run, replay.result, False, ended_t=1080.0)
    assert written.goodput == 0.375
    assert written.time_ledger == TimeLedger(
        wall=80.0, scheduler=40.0, preflight=2.0, start=3.0, useful=30.0, computed_twice=0.0, after_last_step=3.0,
        teardown=2.0,
    )  # fmt: skip
