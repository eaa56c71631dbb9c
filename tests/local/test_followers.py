"""Those who follow a run that another process, or another machine, controls: `attach`, and runs without a follower."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.hosts.waiting import wait_until
from tests.local.running import BOUND, LocalRun

from allranks.cli.status import describe
from allranks.engines import skypilot as sky
from allranks.engines.remote import read_place
from allranks.report.live import OutputView
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument

PROGRAM = """
import pathlib, sys, time
while not pathlib.Path("go").exists():
    print("waits", flush=True)
    time.sleep(0.1)
sys.exit(7)
"""


@contextmanager
def attached(run: LocalRun, code: int) -> Iterator[None]:
    """An `allranks attach --json` that has shown a rank's output, and ends with this code after what is done to it."""
    run.until("rank-started")
    with (run.place / "attach.out").open("w") as out, (run.place / "attach.err").open("w") as err:
        process = forked.popen(["attach", "--json"], env=run.environment, cwd=run.work, stdout=out, stderr=err)
    wait_until(lambda: "waits" in (run.place / "attach.err").read_text(), BOUND, "attach shows the rank's output")
    yield
    assert process.wait(BOUND) == code


def test_attach_to_a_live_run_gives_its_result_as_json(tmp_path: Path) -> None:
    """Standard output was empty, while `attach` to an ended run and to a Slurm job gave the document."""
    run = LocalRun(tmp_path, PROGRAM, "--no-check", nodes=1)
    with attached(run, 1):
        (run.work / "go").touch()
    document = json.loads((tmp_path / "attach.out").read_text())
    assert document["exit"] == 1
    assert document["verdict"]["where"]["rank"] == 0
    assert document == {"schema": 1, **json.loads((run.directory / "result.json").read_text())}
    assert run.process.wait(BOUND) == 1


def test_attach_says_as_an_error_that_the_controller_died(tmp_path: Path) -> None:
    """With --json nothing said it."""
    run = LocalRun(tmp_path, PROGRAM, "--no-check", "--lease", "2s", nodes=1)
    with attached(run, 4):
        run.process.kill()
    error = json.loads((tmp_path / "attach.out").read_text())["error"]
    assert f"the controller of {run.directory.name} died" in error
    assert f"hint: allranks attach {run.directory.name}" in (tmp_path / "attach.err").read_text()
    run.process.wait(BOUND)


# -- engines -------------------------------------------------------------------------------------------


def directory(place: Path, where: dict[str, Any]) -> RunDirectory:
    """Of a run in another place whose follower was killed."""
    found = RunDirectory.create(place, "demo", time.time())
    document = {"run": found.name, "engine": where, "started": time.time(), "nodes": [], "controller": None}
    found.write_document("run.json", document)
    found.write_document("status.json", {"run": found.name, "state": "running", "t": time.time(), "nodes": []})
    return found


@pytest.mark.parametrize(("ended", "code"), [(0, 0), (1, 143), (4, 143), (3, 3)])
def test_a_stop_does_not_change_how_a_run_had_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int, code: int
) -> None:
    """A run on SkyPilot's machines that was done when its stop came was 143; in pods and in Slurm it was 0."""
    monkeypatch.setattr(sky, "call", lambda *_: "")
    where = {"engine": "skypilot", "name": "demo"}
    run = directory(tmp_path, where)
    one = sky.SkyFollower(run, read_place(run, sky.ClusterOfRun), OutputView(), ("true",), {})
    one.stop()
    one.finish(ResultDocument(run.name, exit=ended), "")
    assert (run.read_document("result.json") or {})["exit"] == code


KUBECTL = """#!/bin/sh
[ "$1" = get ] && [ "$2" = pods ] && cat "$PODS" && exit 0
echo '{"items": []}'
"""


def test_a_run_in_pods_that_nobody_followed_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's runs are settled by whoever asks next; one in pods stays "orphaned" until `attach`."""
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    ended = {"name": "node", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    pod = {
        "metadata": {"name": "demo-0-x", "annotations": {"batch.kubernetes.io/job-completion-index": "0"}},
        "spec": {"hostname": "demo-0"},
        "status": {"phase": "Failed", "containerStatuses": [ended]},
    }
    (tmp_path / "pods.json").write_text(json.dumps({"items": [pod]}))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PODS", str(tmp_path / "pods.json"))
    where = {"engine": "kubernetes", "name": "demo", "kind": "job", "nodes": 1}
    said = describe(directory(tmp_path / "runs", where), time.time())
    assert (said.state, said.verdict and said.verdict.cause) == ("failed", "k8s-out-of-memory")
