"""Documents of a run: one writer each, and what does not fit its field is left out where it stands."""

import re
from pathlib import Path

import pytest

import allranks
from allranks.findings import Finding, Verdict, Where
from allranks.protocol.attempts import AttemptEnd
from allranks.protocol.codec import decode_parts, encode
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import (
    GroupResult,
    NodeEntry,
    ResultDocument,
    RunDocument,
    StageResult,
    StatusDocument,
    SuiteResult,
    result_record,
)
from allranks.runs.opening import controller_identity, take_control
from allranks.runs.result import replace_result, write_result

WRITERS = {
    "run.json": ["runs/opening.py"],
    "status.json": ["runs/opening.py"],
    "result.json": ["runs/result.py"],
    "verdict.json": ["runs/result.py"],
}
VERDICT = Verdict(Finding("oom", "fail", "m", where=Where(node="h1", rank=1)), "oom", 0.9, (0,))


@pytest.mark.parametrize("name", WRITERS)
def test_one_module_writes_a_document(name: str) -> None:
    package = Path(allranks.__file__).parent
    call = re.compile(r'write_document\(\s*"' + re.escape(name))
    writers = [p.relative_to(package).as_posix() for p in package.rglob("*.py") if call.search(p.read_text())]
    assert sorted(writers) == WRITERS[name]


@pytest.mark.parametrize(
    "record",
    [
        ResultDocument("r", "/r", 1, verdict=VERDICT, attempts=(AttemptEnd(verdict=VERDICT),)),
        SuiteResult("r", "/r", 3, ok=False, suite="sync", links=({"kind": "link"},), nodes=("h1",)),
    ],
)
def test_a_result_is_read_as_it_was_written(record: ResultDocument, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_document("result.json", encode(record))
    assert run.read_result() == record


def test_what_does_not_fit_is_left_out_at_its_place() -> None:
    nodes = [{"name": "h1", "index": "x", "port": 22}, {"index": 1}, 5, {"name": "h2", "node_rank": 1}]
    document = decode_parts(RunDocument, {"run": 5, "started": 1e400, "nodes": nodes, "command": ["a", 1], "other": []})
    assert document == RunDocument(nodes=(NodeEntry("h1", port=22), NodeEntry("h2", node_rank=1)), command=("a",))
    ranks = [{"rank": 0, "step": "x"}, {"state": "running"}]
    status = decode_parts(StatusDocument, {"master": [], "nodes": [{"name": "h1", "ranks": ranks}]})
    assert [rank.rank for node in status.nodes for rank in node.ranks] == [0] and status.master is None


def test_a_finding_without_its_id_is_shown_and_a_verdict_without_its_cause_is_none() -> None:
    findings = [{"message": "m", "status": "odd", "where": None}, {"id": "oom"}, 5]
    result = result_record({"exit": 1, "findings": findings, "verdict": {"message": "m"}})
    assert (result.findings, result.verdict) == ((Finding("", "unknown", "m"),), None)


def test_a_run_that_changes_hands_keeps_what_this_version_does_not_know(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_document("run.json", {"run": "r", "later": {"x": 1}})
    take_control(run)
    document = run.read_document("run.json") or {}
    assert document["later"] == {"x": 1} and document["controller"] == encode(controller_identity())


@pytest.mark.parametrize("last", [None, StatusDocument("r", "running", 1.0, 2)])
def test_the_last_state_stands_beside_what_was_known(last: StatusDocument | None, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    before = {"run": "r", "state": "running", "t": 0.0, "attempt": 1, "later": 1}
    run.write_document("status.json", before)
    write_result(run, ResultDocument("r", exit=3), False, last)
    expected = before if last is None else encode(last)
    assert run.read_document("status.json") == {"schema": 1, **expected, "state": "failed"}


def test_a_suite_of_several_runs_has_them_in_stages(tmp_path: Path) -> None:
    stages = (StageResult("one node", (GroupResult(("h1",), True, 1.0, "/r/1"),)),)
    run = RunDirectory(tmp_path)
    replace_result(run, SuiteResult("t", "/t", suite="staged", ok=True, nodes=("h1",), stages=stages))
    document = run.read_document("result.json") or {}
    assert document["stages"][0] == {
        "name": "one node",
        "groups": [{"nodes": ["h1"], "ok": True, "seconds": 1.0, "run": "/r/1"}],
        "meaning": "",
    }
    read = run.read_result()
    assert isinstance(read, SuiteResult) and read.suite == "staged" and read.ok


def test_the_gang_is_in_the_order_of_its_places_without_hot_spares() -> None:
    nodes = (NodeEntry("h1", node_rank=1), NodeEntry("h2"), NodeEntry("h3", node_rank=0))
    assert [node.name for node in RunDocument(nodes=nodes).gang] == ["h3", "h1"]
    assert [node.name for node in RunDocument(nodes=(NodeEntry("a"), NodeEntry("b"))).gang] == ["a", "b"]


def test_whoever_writes_a_document_or_an_event_hides_tokens(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    token = "ghp_" + "a1B2" * 9
    run.write_document("verdict.json", {"message": f"refused: {token}", "command": ["x", "--api-key", "abc"]})
    run.append_line({"event": "note", "t": 1.0, "message": f"with {token}"})
    written = (tmp_path / "verdict.json").read_text() + (tmp_path / "events.jsonl").read_text()
    assert token not in written and "abc" not in written
    assert written.count("<redacted>") == 3
