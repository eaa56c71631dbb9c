"""A run directory is judged again from its events, error files and logs, without the documents of its end."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from allranks.diagnose.recorded import fold
from allranks.findings import Finding, Verdict, Where
from allranks.protocol.codec import encode
from allranks.protocol.run_facts import read_lines
from allranks.runs.directory import RunDirectory, save_error
from allranks.runs.judged import complete, judge_run
from allranks.runs.recorded_incident import read_incident

T = 1_790_000_000.0
NODES = [{"name": "h1", "index": 0}, {"name": "h2", "index": 1}]
OWN = {"type": "ValueError", "text": "bad batch", "file": "/job/train.py", "line": 7, "t": T + 5}
RAISED = {"message": {"message": "ValueError: bad batch", "extraInfo": {}}, "allranks": OWN}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "runs", "job", T)
    made.write_document("run.json", {"run": made.name, "nodes": NODES, "spec": {}})
    return made


def tell(run: RunDirectory, *events: tuple[str, dict[str, Any]], attempt: int = 0) -> None:
    for name, fields in events:
        run.append_line({"t": T, "event": name, "attempt": attempt, **fields})


def exited(rank: int, t: float, **how: Any) -> tuple[str, dict[str, Any]]:
    node = f"h{rank + 1}"
    return "rank-exit", {"node": node, "rank": rank, "t": t, "expected": False, "pid": 70 + rank, "oom_kills": 0, **how}


START = ("attempt-start", {})
PLAN = ("plan", {"world_size": 2, "ranks": {"h1": 1, "h2": 1}})


def failed(run: RunDirectory, attempt: int = 0) -> None:
    """Rank 1 raises, rank 0 is ended."""
    tell(run, START, PLAN, exited(1, T + 5, code=1), ("failed", {"t": T + 5.1}),
         exited(0, T + 6, signal=15, expected=True), attempt=attempt)  # fmt: skip
    save_error(run, attempt, 1, RAISED)


def test_the_verdict_comes_from_events_and_error_files(run: RunDirectory) -> None:
    failed(run)
    verdict = encode(judge_run(run))
    assert verdict["cause"] == "program-exception"
    assert verdict["where"] == {"node": "h2", "rank": 1, "pid": 71}
    assert (verdict["victims"], verdict["detected_after_s"]) == ([0], 0.1)
    assert "rank 1 on h2 raised ValueError: bad batch (train.py:7, pid 71)" in verdict["message"]


def test_only_the_last_attempt_counts(run: RunDirectory) -> None:
    failed(run)
    tell(run, START, PLAN, exited(0, T + 50, signal=9), ("failed", {"t": T + 51}), attempt=1)
    verdict = encode(judge_run(run))
    assert (verdict["attempt"], verdict["where"]) == (1, {"node": "h1", "rank": 0, "pid": 70})
    assert "SIGKILL" in verdict["message"] and verdict["victims"] == []


def test_a_newer_allranks_judges_by_its_own_rules(run: RunDirectory) -> None:
    """What the run said at its end is not what counts."""
    failed(run)
    run.write_document("verdict.json", encode(Verdict(Finding("unknown", "fail", "no idea"), "unknown", 0.9)))
    assert encode(judge_run(run))["cause"] == "program-exception"


def test_what_a_full_disk_has_swallowed_is_not_missed(run: RunDirectory) -> None:
    """The events end early; the verdict was written when there was room again."""
    tell(run, START, PLAN)
    finding = Finding("disk-full", "fail", "h2: full", where=Where(node="h2"))
    kept = Verdict(finding, "disk-full", 0.9, (0, 1), attempt=2)
    run.write_document("verdict.json", encode(kept))
    again = encode(judge_run(run))
    assert (again["cause"], again["where"]) == ("disk-full", {"node": "h2"})
    assert (again["victims"], again["attempt"]) == ([0, 1], 2)


def test_the_verdict_on_collective_tests_is_kept(run: RunDirectory) -> None:
    """Their rows were judged, not their exit codes."""
    run.write_document("run.json", {"run": run.name, "nodes": NODES, "spec": {"test": "quick"}})
    failed(run)
    kept = Verdict(Finding("node-network-down", "fail", "h1-h2: dead"), "node-network-down", 0.9)
    run.write_document("verdict.json", encode(kept))
    assert encode(judge_run(run))["cause"] == "node-network-down"
    tell(run, ("test-passed", {}))
    failed(run, attempt=1)
    assert encode(judge_run(run))["cause"] == "program-exception"


def test_events_of_another_version_are_no_error(run: RunDirectory) -> None:
    tell(run, START, ("rank-exit", {"rank": 1}))
    assert read_incident(run) is None
    assert encode(judge_run(run))["cause"] == "unknown"


@pytest.mark.parametrize("confidence", [0.4, 0.7])
def test_a_verdict_that_is_not_sure_asks_the_logs(run: RunDirectory, confidence: float) -> None:
    log = run.log_path(0, "h1", 0, 0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("h1:11:22 [0] include/alloc.h:48 NCCL WARN Cuda failure 2 'out of memory'\n"
                   "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB\n")  # fmt: skip
    verdict = Verdict(Finding("unknown", "fail", "a rank has ended"), "unknown", confidence, (0, 1))
    found = complete(verdict, run)
    assert found.cause == ("cuda-out-of-memory" if confidence < 0.5 else "unknown")
    assert found.victims == (0, 1)


# -- the fold --------------------------------------------------------------------------------------


def event(name: str, **fields: Any) -> dict[str, Any]:
    return {"t": T, "event": name, "attempt": 0, **fields}


def test_every_part_of_the_evidence_is_read() -> None:
    hang = {"cause": "uneven-data", "message": "m", "remedy": "r", "confidence": 0.8, "culprits": [1],
            "victims": [0], "evidence": ["e"], "slow": False, "quiet": 60.0, "of_a_later_version": 1}  # fmt: skip
    events = [
        event("attempt-start"),
        event("facts", node="h1", addresses=["10.0.0.1", "172.17.0.1"], memory=1 << 34, gpus=1),
        event("facts", node="h2", addresses=["10.0.0.2", "172.17.0.1"], memory=0, gpus=1),
        event("finding", **encode(Finding("clock-skew", "warn", "h2", where=Where(nodes=("h1", "h2"))))),
        event("finding", **encode(Finding("mtu", "ok", "fine"))),
        event("plan", world_size=3, ranks={"h1": 1, "h2": 2}),
        event("rank-started", node="h1", rank=0, pid=7),
        event("rank-entered", node="h1", rank=0),
        event("rank-initialised", node="h1", rank=0),
        event("rank-entered", node="h2", rank=1),
        event("rank-departed", node="h2", rank=1, t=T + 9),
        event("node-lost", node="h2", last_heard=T + 1, t=T + 10),
        event("fault", node="h1", id="agent-death", message="was killed", t=T + 2),
        event("init-timeout"),
        event("hang", **hang),
        event("stop-asked", reason="ctrl-c"),
        event("failed", t=T + 3),
    ]
    found = fold(read_lines(json.loads(json.dumps(events))), 0, ["h1", "h2"])
    assert (found.world_size, found.ranks_by_node) == (3, {"h1": (0,), "h2": (1, 2)})
    assert (found.memory, found.gpus, found.pids) == ({"h1": 1 << 34}, {0: 0}, {0: 7})
    assert found.addresses == {"10.0.0.1": "h1", "10.0.0.2": "h2"}, "an address of two nodes tells nothing"
    assert [(f.id, f.where.nodes) for f in found.findings] == [("clock-skew", ("h1", "h2"))]
    assert (found.initialised, found.init_entered) == ({0}, {0, 1})
    assert {rank: one.t for rank, one in found.departed.items()} == {1: T + 9}
    assert (found.lost[0].node, found.lost[0].fact.last_heard, found.lost[0].t) == ("h2", T + 1, T + 10)
    assert (found.faults[0].fact.id, found.init_timeout_hit, found.stop_reason) == ("agent-death", True, "ctrl-c")
    assert found.hang is not None and (found.hang.culprits, found.hang.evidence) == ((1,), ("e",))
    assert (found.detected_t, found.master) == (T + 3, "h1")


def test_a_command_stands_for_all_ranks_of_its_node_once_started() -> None:
    events = [event("attempt-start"), event("plan", world_size=4, ranks={"h1": 2, "h2": 2})]
    assert fold(read_lines(events), 0, ["h1", "h2"], one_process=True).ranks_by_node == {"h1": (0, 1), "h2": (2, 3)}
    events.append(event("gate-proved", ranks={"h1": 2, "h2": 2}))
    assert fold(read_lines(events), 0, ["h1", "h2"], one_process=True).ranks_by_node == {"h1": (0,), "h2": (2,)}
    assert fold(read_lines(events), 0, ["h1", "h2"]).ranks_by_node == {"h1": (0, 1), "h2": (2, 3)}


def test_before_a_plan_nodes_have_no_ranks() -> None:
    assert fold(read_lines([event("attempt-start")]), 0, ["h1"]).ranks_by_node == {"h1": ()}


def recorded_calls(rank: int, numbers: tuple[int, ...]) -> str:
    """A line of evidence/flight: what the helper of a rank answered, its last call still open."""
    entries = [{"collective_seq_id": seq, "profiling_name": "gloo:all_reduce", "process_group": ["0", "default_pg"],
                "input_sizes": [[10]], "input_dtypes": ["Float"], "is_p2p": False, "retired": seq == 4,
                "state": "scheduled"} for seq in numbers]  # fmt: skip
    group = {"name": "0", "desc": "default_pg", "ranks": [0, 1, 2]}
    return json.dumps({"rank": rank, "groups": [group], "recorders": {"gloo": {"entries": entries}}}) + "\n"


def hung(run: RunDirectory, confidence: float) -> None:
    """Three ranks hang, and the run has said so with a confidence; their recorders show that rank 2 is behind."""
    hang = {"cause": "unknown", "message": "all ranks wait", "remedy": "test the network", "confidence": confidence,
            "quiet": 60.0, "culprits": [], "victims": [0, 1, 2]}  # fmt: skip
    tell(run, START, ("plan", {"world_size": 3, "ranks": {"h1": 2, "h2": 1}}), ("hang", hang), ("failed", {"t": T + 9}))
    folder = run.path / "evidence/flight"
    folder.mkdir(parents=True)
    for rank, numbers in enumerate([(4, 5), (4, 5), (4,)]):
        (folder / f"rank_{rank:03d}.jsonl").write_text(recorded_calls(rank, (4,)) + recorded_calls(rank, numbers))


def test_a_hang_that_was_not_explained_is_judged_again_from_the_recorders(run: RunDirectory) -> None:
    hung(run, 0.4)
    verdict = encode(judge_run(run))
    assert (verdict["cause"], verdict["culprits"]) == ("straggler", [2])
    assert "rank 2 has not called it" in verdict["message"]


def test_recorders_of_an_earlier_attempt_do_not_count(run: RunDirectory) -> None:
    hung(run, 0.4)
    for path in (run.path / "evidence/flight").glob("*"):
        os.utime(path, (T - 100, T - 100))
    assert encode(judge_run(run))["cause"] == "unknown"


def test_recorders_do_not_count_where_nothing_hung(run: RunDirectory) -> None:
    """A slow rank was asked, and the run went on."""
    hung(run, 0.4)
    tell(run, START, PLAN, exited(0, T + 50, signal=9), ("failed", {"t": T + 51}), attempt=1)
    verdict = encode(judge_run(run))
    assert "straggler" not in (verdict["cause"], *(one["id"] for one in verdict["runners_up"]))
