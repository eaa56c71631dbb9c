"""What a shell offers behind Tab, as its script asks: verbs, options, runs, choices."""

import os
import time
from pathlib import Path

import pytest
from tests import forked

from allranks.runs.directory import RunDirectory

pytestmark = pytest.mark.processes


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a run."""
    run = RunDirectory.create(tmp_path / "runs", "demo", time.time())
    run.write_document("run.json", {"run": run.name, "nodes": [], "started": time.time(), "controller": None})
    return tmp_path


def offered(place: Path, *words: str) -> list[str]:
    """The words that bash would show; the last of `words` is the one that is being typed."""
    line = ["allranks", *words]
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(place), "_ALLRANKS_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1),
    }  # fmt: skip
    done = forked.call([], env=environment, cwd=place)
    assert done.returncode == 0, done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stat"], ["status"]),
        (["hel"], ["help"]),
        (["help", "stat"], ["status"]),
        (["run", "--help"], ["--help-all", "--help"]),
        (["status", "--help"], ["--help"]),
        (["check", "--color", "a"], ["auto", "always"]),
        (["diagnose", "--sig"], ["--signatures"]),
        (["run", "--on-hang", ""], ["stop", "report", "restart"]),
        (["run", "--local", "1", "--nod"], ["--nodes", "--node-dir", "--node-wait"]),
        (["render", "kub"], ["kubernetes"]),
        (["render", "kubernetes", "--kind", "job"], ["job", "jobset"]),
        (["test", "--suite", "b"], ["bandwidth"]),
    ],
    ids=str,
)
def test_words(place: Path, words: list[str], expected: list[str]) -> None:
    assert offered(place, *words) == expected


def test_runs(place: Path) -> None:
    (run,) = (place / "runs").iterdir()
    for verb in ("status", "logs", "attach", "stop", "report"):
        assert offered(place, verb, "dem") == [run.name]


def test_a_directory_of_a_run_and_logs_are_completed_as_files(place: Path) -> None:
    for verb in ("status", "diagnose"):
        assert offered(place, verb, "runs/") == ["runs/"], "the shell lists what is there"
    (run,) = (place / "runs").iterdir()
    assert offered(place, "diagnose", "dem") == [run.name]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(place: Path, shell: str) -> None:
    done = forked.call([], env={**os.environ, "_ALLRANKS_COMPLETE": f"{shell}_source"}, cwd=place)
    assert done.returncode == 0 and "allranks" in done.stdout
