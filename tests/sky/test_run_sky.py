"""run --sky: what `sky` is told, what becomes of its log, what is left. The clouds are stood in for (standin.py)."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.hosts.waiting import BOUND
from tests.ports import free_port

from allranks.engines.skypilot import ClusterOfRun, SkyFollower
from allranks.runs.directory import RunDirectory
from allranks.runs.view import View

HERE = Path(__file__).parent


class Sky:
    """`allranks run --sky` with the stand-in on PATH."""

    def __init__(self, place: Path) -> None:
        self.place, self.state = place, place / "state"
        self.state.mkdir()
        (place / "bin").mkdir()
        tool = place / "bin" / "sky"
        tool.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "standin.py"} "$@"\n')
        tool.chmod(0o755)
        (place / "allranks.toml").write_text(f"join-port = {free_port()}\nlease = 8\n")
        self.env = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "ALLRANKS_STANDIN": str(self.state)}

    def start(self, code: str, *options: str) -> forked.Process:
        words = ["--sky", "--nodes", "2", "--nproc", "1", "--no-check", "--json", "--stop-grace", "3s", *options]
        words = ["run", *words, "--", sys.executable, "-u", "-c", code]
        with (self.place / "out").open("w") as out, (self.place / "err").open("w") as err:
            return forked.popen(words, cwd=self.place, env=self.env, stdout=out, stderr=err)

    def result(self, process: forked.Process) -> dict[str, Any]:
        code = process.wait(BOUND)
        found: dict[str, Any] = json.loads((self.place / "out").read_text())
        assert found["exit"] == code
        return found

    @property
    def run_dir(self) -> Path:
        (found,) = (self.place / "runs").iterdir()
        return found

    def log(self, rank: int) -> str:
        return "".join(p.read_text() for p in self.place.glob(f"runs/*/logs/*/rank_{rank:03d}.log"))

    def calls(self) -> list[str]:
        return (self.state / "calls").read_text().splitlines()


@pytest.fixture
def sky(tmp_path: Path) -> Sky:
    return Sky(tmp_path)


def test_a_run_comes_back_as_an_ordinary_run_directory(sky: Sky) -> None:
    code = "import os as o; print('ü', o.environ['RANK'], o.environ['WORLD_SIZE'], 'ALLRANKS_JOIN_SECRET' in o.environ)"
    result = sky.result(sky.start(code))
    assert (result["exit"], result["verdict"], result["left"]) == (0, None, {})
    assert [sky.log(rank) for rank in (0, 1)] == ["ü 0 2 False\n", "ü 1 2 False\n"]
    name = json.loads((sky.run_dir / "run.json").read_text())["engine"]["name"]
    task = str(sky.run_dir / "task.yaml")
    assert sky.calls() == [f"launch --cluster {name} --yes --secret ALLRANKS_JOIN_SECRET {task}", f"down --yes {name}"]
    assert "ALLRANKS_JOIN_SECRET:" not in (sky.run_dir / "task.yaml").read_text()
    assert "Cluster launched" in (sky.run_dir / "sky.log").read_text()


def test_a_failure_is_the_verdict_and_the_machines_go(sky: Sky) -> None:
    code = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('out of tune')\ntime.sleep(999)"
    result = sky.result(sky.start(code))
    assert result["exit"] == 1 and result["verdict"]["where"]["rank"] == 1
    assert sky.calls()[-1].startswith("down --yes")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_stop_lets_ranks_save_before_the_machines_go(sky: Sky, number: int) -> None:
    code = "import os, signal, sys, time\nsignal.signal(15, lambda *a: (print('saved', flush=True), sys.exit(0)))\n"
    process = sky.start(code + "print('is up', flush=True)\nwhile True: time.sleep(0.1)", "--autostop", "10m")
    end = time.monotonic() + BOUND
    while not all("is up" in sky.log(rank) for rank in (0, 1)):
        assert time.monotonic() < end and process.poll() is None, (sky.place / "err").read_text()
        time.sleep(0.1)
    process.send_signal(number)
    assert sky.result(process)["exit"] == (130 if number == signal.SIGINT else 143)
    assert "saved" in sky.log(0) and "saved" in sky.log(1)
    assert [call.split()[0] for call in sky.calls()] == ["launch", "cancel", "down"]


@pytest.mark.slow
def test_autostop_leaves_the_machines(sky: Sky) -> None:
    assert sky.result(sky.start("pass", "--autostop", "10m"))["exit"] == 0
    assert [call.split()[0] for call in sky.calls()] == ["launch"]
    assert "idle_minutes: 10" in (sky.run_dir / "task.yaml").read_text()


def test_dry_run_calls_nothing(sky: Sky) -> None:
    assert sky.start("pass", "--dry-run", "--env", "API_KEY=hunter2").wait(BOUND) == 0
    printed = (sky.place / "out").read_text()
    assert "API_KEY" in json.loads(printed)["command"] and "hunter2" not in printed
    assert not (sky.state / "calls").exists() and not (sky.place / "runs").exists()


def test_a_log_of_sky_that_cannot_be_written_fails_no_run(tmp_path: Path) -> None:
    """The follower ended with an internal error on a full disk."""
    run = RunDirectory.create(tmp_path, "train", time.time())
    (run.path / "sky.log").mkdir()
    place = ClusterOfRun("skypilot", "demo")
    follower = SkyFollower(run, place, View(), [sys.executable, "-c", "print('provisioning')"], os.environ)
    deadline = time.monotonic() + BOUND
    result = follower.turn()
    while result is None and time.monotonic() < deadline:
        time.sleep(0.02)
        result = follower.turn()
    assert result is not None and result.verdict is not None
    assert (result.exit, result.verdict.finding.evidence) == (4, ("provisioning",))
