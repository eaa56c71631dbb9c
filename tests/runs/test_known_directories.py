"""The list of runs directories in the user's state directory."""

import json
import os
import stat
from pathlib import Path

import pytest

from allranks.runs.directory import RunDirectory
from allranks.runs.documents import RunDocument
from allranks.runs.known_directories import (
    MOST,
    NAME,
    known_runs_directories,
    note_runs_directory,
    state_directory,
)
from allranks.runs.opening import write_opening
from allranks.settings import RunSpec


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}


def places(tmp_path: Path, count: int) -> list[Path]:
    made = [tmp_path / f"project{number}" / "runs" for number in range(count)]
    for place in made:
        place.mkdir(parents=True)
    return made


def list_file(environ: dict[str, str]) -> Path:
    folder = state_directory(environ)
    assert folder is not None
    return folder / NAME


def test_a_directory_is_noted_once_and_privately(tmp_path: Path, environ: dict[str, str]) -> None:
    first, second = places(tmp_path, 2)
    for place in (first, second, first):
        note_runs_directory(place, environ)
    assert known_runs_directories(environ) == [first, second]
    file = list_file(environ)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"schema": 1, "directory": str(first)}, {"schema": 1, "directory": str(second)}]  # fmt: skip
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_without_a_variable_it_is_below_the_home(tmp_path: Path) -> None:
    assert state_directory({"HOME": "/home/me"}) == Path("/home/me/.local/state/allranks")
    assert state_directory({}) is None
    note_runs_directory(tmp_path, {})
    assert known_runs_directories({}) == []


def test_directories_that_have_vanished_are_dropped(tmp_path: Path, environ: dict[str, str]) -> None:
    first, second = places(tmp_path, 2)
    for place in (first, second):
        note_runs_directory(place, environ)
    first.rmdir()
    assert known_runs_directories(environ) == [second]


def test_the_list_is_bounded(tmp_path: Path, environ: dict[str, str]) -> None:
    made = places(tmp_path, 2 * MOST + 5)
    for place in made:
        note_runs_directory(place, environ)
    assert len(list_file(environ).read_text().splitlines()) <= 2 * MOST
    assert known_runs_directories(environ) == made[-MOST:]


def test_lines_that_are_none_are_passed_over(tmp_path: Path, environ: dict[str, str]) -> None:
    (place,) = places(tmp_path, 1)
    note_runs_directory(place, environ)
    with list_file(environ).open("ab") as file:
        file.write(b'\xff\xfe\n{"directory": 7}\n{"directory": "relative"}\n{"directory": "/\\u0000"}\n[')
    assert known_runs_directories(environ) == [place]


@pytest.mark.parametrize("spoil", ["file for the folder", "pipe for the file", "link for the file"])
def test_a_run_begins_whatever_stands_there(
    spoil: str, tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = list_file(environ)
    file.parent.parent.mkdir()
    target = tmp_path / "target"
    if spoil == "file for the folder":
        file.parent.write_text("")
    else:
        file.parent.mkdir()
        if spoil == "pipe for the file":
            os.mkfifo(file)
        else:
            file.symlink_to(target)
    monkeypatch.setenv("XDG_STATE_HOME", environ["XDG_STATE_HOME"])
    run = RunDirectory.create(tmp_path / "runs", "job", 0.0)
    write_opening(run, RunSpec(), RunDocument(uid="uid", started=1.0, source="test"))
    assert run.read_run().uid == "uid"
    assert known_runs_directories(environ) == []
    assert not target.exists()


def test_the_opener_of_runs_notes_where_they_are(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", environ["XDG_STATE_HOME"])
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create(Path("runs"), "job", 0.0)
    write_opening(run, RunSpec(), RunDocument(uid="uid", started=1.0, source="test"))
    assert known_runs_directories(environ) == [tmp_path / "runs"]
