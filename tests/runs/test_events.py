"""Lines of events.jsonl: each kind is in the table that readers have, and stands in its line as it is."""

import re
from pathlib import Path

import pytest

from allranks.cluster.nodes import virtual_cluster
from allranks.diagnose.recorded import fold
from allranks.engines import reach_nodes
from allranks.engines.ssh import ssh_reach
from allranks.findings import Finding, Hang, Verdict, Where
from allranks.gang.session import adopt, continue_run, create
from allranks.protocol.codec import encode
from allranks.protocol.messages import EndedMessage, ExitMessage
from allranks.protocol.processes import RemainingProcess
from allranks.protocol.run_facts import (
    AttemptStart,
    FirstStep,
    HangConcluded,
    OutputDropped,
    PlanMade,
    RankInitialised,
    RetryDecided,
    RunStart,
    Stamped,
    StepsSeen,
    read_lines,
    write_line,
)
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.document import to_document

HERE = Path(__file__).parents[2] / "src/allranks"


@pytest.mark.parametrize("package", ["cli", "engines", "gang", "report", "runs"])
def test_an_event_is_written_as_a_record(package: str) -> None:
    """A dict beside the records drifts: run-start had no uid where nodes did not come."""
    written = [path.name for path in (HERE / package).rglob("*.py") if re.search(r'"event": "', path.read_text())]
    assert written == []


def test_a_line_has_the_time_of_its_event_where_the_event_has_one() -> None:
    started = write_line(Stamped("", 5.0, None, RunStart("r", "u")))
    assert started == {"t": 5.0, "event": "run-start", "run": "r", "uid": "u"}
    initialised = write_line(Stamped("h1", 4.5, 1, RankInitialised(3)))
    assert initialised == {"t": 4.5, "event": "rank-initialised", "attempt": 1, "node": "h1", "rank": 3}


def test_an_exit_has_its_code_or_its_signal_and_not_its_error_file() -> None:
    ended = write_line(Stamped("h1", 1.0, 0, ExitMessage(0, code=3, pid=77, error={"message": "boom"})))
    assert ended["code"] == 3 and not {"signal", "error"} & set(ended)
    killed = write_line(Stamped("h1", 1.0, 0, ExitMessage(0, expected=True, signal=9, oom_kills=1)))
    assert killed["signal"] == 9 and not {"code", "pid"} & set(killed)


def test_what_holds_a_record_of_its_own_has_its_fields_in_the_line() -> None:
    finding = Finding("oom", "fail", "m", where=Where(node="h1"))
    assert write_line(Stamped("", 1.0, None, finding)) == {"t": 1.0, "event": "finding", **encode(finding)}
    retry = write_line(Stamped("", 1.0, 0, RetryDecided("again", Verdict(finding, "oom", 0.9))))
    assert retry["verdict"]["cause"] == "oom"
    left = write_line(Stamped("h1", 1.0, 0, EndedMessage(left=(RemainingProcess(5, "D", "cp"),))))["left"]
    assert left == [{"pid": 5, "state": "D", "command": "cp"}]


def test_a_judge_reads_what_was_written() -> None:
    hang = Hang("straggler", "m", "r", 0.8, (1,), (0,), ("e",))
    told = [AttemptStart(), PlanMade(2, {"h1": 2}), RankInitialised(0), HangConcluded(60.0, hang)]
    lines = [write_line(Stamped("h1", 1.0, 0, one)) for one in told]
    incident = fold(list(read_lines(lines)), 0, ["h1"])
    assert (incident.hang, incident.world_size, incident.initialised) == (hang, 2, frozenset({0}))


# Lines that are JSON and not what their name says: another version wrote them, or a disk has damaged them.
DAMAGED = [
    {"event": "first-step"},
    {"event": "first-step", "seconds": "x"},
    {"event": "all-initialised", "attempt": 0, "seconds": None},
    {"event": "dropped", "node": "h1", "rank": "x", "bytes": 1},
    {"event": "dropped", "node": [], "attempt": "x"},
    {"event": "log-continued", "index": 0, "at": 5},
    {"event": "log-continued", "index": 0, "stream": "a/b", "at": 5},
    {"event": "log-continued", "index": 0, "stream": "0/0", "at": 5},
    {"event": "attempt-end", "attempt": "x", "decision": 5},
    {"event": "attempt-start", "attempt": "x"},
    {"event": 5},
]


@pytest.mark.parametrize("line", DAMAGED, ids=str)
def test_a_damaged_event_keeps_nobody_from_taking_the_run_over(line: Document, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    spec = to_document(RunSpec.of(command=("train.py",)))
    nodes = [{"name": "h1", "index": 0, "host": "h1", "node_rank": 0}]
    document = {"run": "r", "uid": "u", "spec": spec, "workdir": "/", "nodes": nodes, "started": 1.0}
    run.write_document("run.json", document)
    run.append_line(line)
    for told in (AttemptStart(), FirstStep(2.0), OutputDropped(3, 70, 70, "full")):
        run.append(Stamped("h1", 1.0, 0, told))
    session = adopt(run, View(), reach_nodes)
    assert session.controller.recording.dropped == {"h1": {3: 70}}
    assert session.controller.observing.first_step_noted
    continue_run(session, run.read_facts()[0])
    assert session.controller.roster.attempt == 1


def test_a_run_that_starts_again_shows_its_own_first_step_and_logs(tmp_path: Path) -> None:
    """What another controller had noted of its agents holds for one that takes them over, and for no other start."""
    spec = RunSpec.of(command=("true",), local=1, nproc=1, runs_dir=str(tmp_path / "runs"))
    session = create(spec, virtual_cluster(1), ssh_reach(spec), {}, str(tmp_path), View)
    run = session.run_dir
    for noted in (AttemptStart(), StepsSeen(1, 1.0, 7, 2.0), FirstStep(2.0), OutputDropped(0, 70, 70, "full")):
        run.append(Stamped("local0", 1.0, 0, noted))
    continue_run(session, run.read_facts()[0])
    observing = session.controller.observing
    assert (observing.progress.reached, observing.first_step_noted) == (7, False)
    assert session.controller.recording.dropped == {}
