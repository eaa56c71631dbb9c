"""What a shell offers behind Tab, as its script asks: verbs, options, runs, ranks, nodes, checks, choices."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests import forked

from allranks.runs.directory import RunDirectory

pytestmark = pytest.mark.processes


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a run of two nodes, a script, and a home with an ssh configuration."""
    run = RunDirectory.create(tmp_path / "runs", "demo", time.time())
    nodes = [
        {"name": name, "index": at, "ranks": [{"rank": 2 * at}, {"rank": 2 * at + 1}]}
        for at, name in enumerate(("gpu1", "gpu2"))
    ]
    run.write_document("run.json", {"run": run.name, "nodes": nodes, "started": time.time(), "controller": None})
    run.write_document("status.json", {"state": "done", "world_size": 4, "nodes": nodes})
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host login1 *.cluster\n  User me\nhost=login2\n")
    (tmp_path / ".config" / "allranks").mkdir(parents=True)
    (tmp_path / ".config" / "allranks" / "config.toml").write_text(
        "[cluster.lab]\nhosts='a'\n[cluster.big]\nslurm=true\n"
    )
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
        (["diagnose", "--exit"], ["--exit-code"]),
        (["run", "--on-hang", ""], ["stop", "report", "restart"]),
        (["run", "--hosts", "log"], ["login1", "login2"]),
        (["check", "--cluster", ""], ["lab", "big"]),
        (["run", "--local", "1", "--nod"], ["--nodes", "--node-dir", "--node-wait"]),
        (["logs", "--rank", ""], ["0", "1", "2", "3"]),
        (["logs", "--node", "gpu"], ["gpu1", "gpu2"]),
        (["check", "--only", "gpu_ec"], ["gpu_ecc"]),
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
    assert offered(place, "logs", run.name, "--rank", "3") == ["3"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(place: Path, shell: str) -> None:
    done = forked.call([], env={**os.environ, "_ALLRANKS_COMPLETE": f"{shell}_source"}, cwd=place)
    assert done.returncode == 0 and "allranks" in done.stdout
