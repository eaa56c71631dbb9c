"""Which run a name means where some have their controller on another machine."""

import os
import time
from pathlib import Path

import pytest
from tests.cli.test_ps import make

from allranks.cli.chosen_run import find_run
from allranks.cli.ps import command
from allranks.errors import RunIsElsewhere, RunNotFound
from allranks.runs.known_directories import ELSEWHERE, MOST, RunElsewhere, note_run_elsewhere, runs_elsewhere

NAME = "pre-20261129-055450"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("ALLRANKS_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


def note(runs: Path, name: str = NAME, age: float = 0.0) -> RunElsewhere:
    run = RunElsewhere(name, time.time() - age, "h1", f"/there/runs/{name}", str(runs), ("Port=2222",))
    note_run_elsewhere(run, os.environ)
    return run


def test_a_name_finds_a_run_elsewhere(runs: Path) -> None:
    noted = note(runs)
    for wanted in (NAME, "pre", None):
        with pytest.raises(RunIsElsewhere) as found:
            find_run(wanted, None)
        assert (found.value.host, found.value.directory) == ("h1", noted.directory)
        assert (found.value.wanted, found.value.ssh_options) == (wanted, ("Port=2222",))
    with pytest.raises(RunNotFound):
        find_run("other", None)
    with pytest.raises(RunIsElsewhere, match="hint: allranks attach --on h9"):
        find_run("other", None, on="h9")


def test_the_newest_run_is_meant_wherever_it_is(runs: Path) -> None:
    note(runs, age=100.0)
    here = make(runs, "here", 50.0, exit_code=0)
    assert find_run(None, None).name == here.name
    assert find_run("here", None).name == here.name
    note(runs, "later-20261129-055500")
    with pytest.raises(RunIsElsewhere):
        find_run(None, None)


def test_ps_names_those_elsewhere(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(runs, "here", 50.0, exit_code=0)
    note(runs)
    assert command(all_=False, number=20, quiet=False, runs_dir=None, json_=False) == 0
    said = capsys.readouterr().out
    assert "here-" in said and f"on h1: {NAME} (allranks status {NAME})" in said


def test_a_run_on_a_disk_of_both_machines(runs: Path) -> None:
    """Its controller is asked while it goes on, and its directory once it is over, or is to be taken over."""
    run = make(runs, "pre", 10.0, alive=False)
    note(runs, run.name)
    with pytest.raises(RunIsElsewhere):
        find_run("pre", None)
    assert find_run("pre", None, prefers_here=True).name == run.name
    run.write_document("result.json", {"exit": 0, "run": run.name, "directory": str(run.path)})
    assert find_run("pre", None).name == find_run(None, None).name == run.name


def test_the_list_stays_short_and_damage_is_passed_over(runs: Path, tmp_path: Path) -> None:
    for number in range(2 * MOST + 1):
        note(runs, f"n{number}-20261129-055450")
    with (tmp_path / "state" / "allranks" / ELSEWHERE).open("ab") as file:
        file.write(b'{"run": "x", "host": 3}\nnonsense\n{"run": "y", "host": "h", "directory": "relative"}\n')
    assert len(runs_elsewhere(os.environ)) == MOST
