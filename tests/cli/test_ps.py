"""allranks ps, and what the commands of one run say where several match; the run directories are made by hand."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.shell import Shell

from allranks.protocol.codec import encode
from allranks.runs.directory import RunDirectory
from allranks.runs.known_directories import note_runs_directory
from allranks.runs.opening import controller_identity

DEAD = {"host": os.uname().nodename, "pid": 1, "start_time": 1}
VERDICT = {"cause": "oom-gpu", "message": "rank 3 on h1 ran out of GPU memory\nmore", "status": "fail"}


def make(
    runs: Path, name: str, age: float, exit_code: int | None = None, alive: bool = True, more: Any = None
) -> RunDirectory:
    """A run of two nodes with two ranks and a spare; without `exit_code` it goes on where `alive`."""
    started = time.time() - age
    run = RunDirectory.create(runs, name, started)
    nodes = [{"name": f"h{number}", "index": number, "node_rank": number} for number in range(2)]
    nodes.append({"name": "h9", "index": 2, "node_rank": None})
    controller = encode(controller_identity()) if alive else DEAD
    run.write_document("run.json", {"run": run.name, "nodes": nodes, "started": started, "controller": controller})
    ranks = [{"rank": 0, "step": 41, "rate": 2.5}, {"rank": 1, "step": 40, "rate": 2.25}]
    placed = [{"name": f"h{number}", "ranks": [ranks[number]]} for number in range(2)]
    run.write_document("status.json", {"state": "running", "world_size": 2, "nodes": placed})
    if exit_code is not None:
        verdict = VERDICT if exit_code else None
        attempts = [{"attempt": 0, "outcome": "failed", "step": 100}]
        result = {"exit": exit_code, "verdict": verdict, "attempts": attempts, "timing": {"total": 61.5}}
        run.write_document("result.json", {**result, **(more or {})})
    return run


@pytest.fixture
def runs(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "runs"


def test_a_line_a_run_the_newest_first_and_json_has_the_same_as_figures(runs: Path, shell: Shell) -> None:
    ended = make(runs, "old", 7300, exit_code=1)
    active = make(runs, "new", 65)
    head, first, second = shell("ps").out.splitlines()
    assert head.split() == ["NAME", "STATE", "NODES", "STEP", "RATE", "GOODPUT", "AGE", "VERDICT"]
    assert first.split() == [active.name, "running", "2", "40", "2.25/s", "1", "min", "5", "s"]
    assert second.split(maxsplit=8) == [
        ended.name, "failed", "2", "100", "2", "h", "1", "min", "oom-gpu: rank 3 on h1 ran out of GPU memory"
    ]  # fmt: skip
    document = shell("ps", "--json").document
    new, old = document["runs"]
    assert (new["state"], new["ranks"], new["step"], new["rate"], new["verdict"]) == ("running", 2, 40, 2.25, None)
    assert (old["state"], old["step"], old["seconds"], old["exit"]) == ("failed", 100, 61.5, 1)
    assert (old["verdict"]["cause"], document["left_out"]) == ("oom-gpu", 0)


def test_runs_that_are_over_are_few_and_those_that_go_on_are_all_there(runs: Path, shell: Shell) -> None:
    active = make(runs, "first", 9000)
    for number in range(4):
        make(runs, f"ended{number}", 5000 - number, exit_code=0)
    out = shell("ps", "-n", "1").out
    assert [line.split()[0] for line in out.splitlines()[1:3]] == [next(runs.glob("ended3-*")).name, active.name]
    assert out.splitlines()[-1] == "… and 3 older runs: allranks ps -n 5"


def test_a_run_without_a_controller_says_what_to_do(runs: Path, shell: Shell) -> None:
    make(runs, "lost", 60, alive=False)
    (line,) = shell("ps").out.splitlines()[1:]
    assert "orphaned" in line
    assert "`allranks attach` takes it over" in line


@pytest.mark.parametrize(("age", "state"), [(5.0, "running"), (3600.0, "orphaned")])
def test_a_controller_on_another_machine_has_its_lease(runs: Path, shell: Shell, age: float, state: str) -> None:
    """With --controller and a home directory that both machines see, a healthy run was called orphaned."""
    run = make(runs, "far", 7200)
    document = json.loads((run.path / "run.json").read_text())
    document["controller"]["host"] = "another-machine"
    run.write_document("run.json", document)
    run.write_document("status.json", {"state": "running", "t": time.time() - age, "world_size": 2, "nodes": []})
    (brief,) = shell("ps", "--json").document["runs"]
    assert brief["state"] == state


def test_damaged_runs_are_listed_with_what_is_known(runs: Path, shell: Shell) -> None:
    run = make(runs, "job", 60, exit_code=1)
    (run.path / "result.json").write_text("{")
    run.append_line({"t": 1.0, "event": "run-end", "exit": 5})
    other = make(runs, "other", 60, exit_code=1, more={"attempts": 7, "verdict": [1], "timing": {"total": "x"}})
    document = shell("ps", "--json").document
    found = {row["run"]: row for row in document["runs"]}
    assert (found[run.name]["state"], found[run.name]["exit"]) == ("failed", 5)
    assert (found[other.name]["step"], found[other.name]["verdict"]) == (None, None)


def test_all_lists_every_directory_that_has_had_runs(runs: Path, tmp_path: Path, shell: Shell) -> None:
    elsewhere = tmp_path / "other" / "runs"
    away = make(elsewhere, "away", 60, exit_code=0)
    here = make(runs, "here", 60, exit_code=0)
    for directory in (runs, elsewhere):
        note_runs_directory(directory, dict(os.environ))
    assert [row["run"] for row in shell("ps", "--json").document["runs"]] == [here.name]
    assert [row["run"] for row in shell("ps", "--all", "--json").document["runs"]] == [here.name, away.name]
    out = shell("ps", "--all").out
    assert f"{runs}:" in out.splitlines()
    assert f"{elsewhere}:" in out.splitlines()


def test_an_empty_place_names_the_other_command(runs: Path, shell: Shell) -> None:
    assert shell("ps").out == "no run in runs/. `allranks ps --all` lists those of other directories\n"
    assert "no runs are known" in shell("ps", "--all").out


@pytest.mark.parametrize("verb", ["status", "logs", "attach", "stop", "report"])
def test_a_name_of_several_runs_names_the_choices(verb: str, runs: Path, shell: Shell) -> None:
    older = make(runs, "job", 7300)
    newer = make(runs, "job", 65)
    answer = shell(verb, "job")
    assert answer.code == 2
    assert "'job' is not one run, 2 runs in runs/ have this name and go on:" in answer.err
    lines = answer.err.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == [newer.name, older.name]
    assert "2.25/s" in lines[2]
    assert lines[-1] == f"hint: allranks {verb} {newer.name}"


def test_stop_without_a_name_names_the_active_runs(runs: Path, shell: Shell) -> None:
    make(runs, "job", 7300)
    newer = make(runs, "another", 65)
    answer = shell("stop")
    assert answer.code == 2
    assert "2 runs are active:" in answer.err
    assert answer.err.splitlines()[-1] == f"hint: allranks stop {newer.name}, or allranks stop --all"


def test_lines_fit_a_narrow_terminal(runs: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    make(runs, "old", 7300, exit_code=1)
    monkeypatch.setattr("allranks.cli.ps.window_size", lambda *_: (72, 24))
    assert max(len(line) for line in shell("ps").out.splitlines()) == 72
