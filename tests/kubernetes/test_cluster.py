"""The whole of `run --k8s` on the cluster that KUBECONFIG names (docs/explanation/kubernetes.md has how one is had).

ALLRANKS_TEST_IMAGE is an image with a python3 >= 3.10; ALLRANKS_TEST_KIND the kind of objects (job), ALLRANKS_TEST_POD
a file for --pod. Without KUBECONFIG and an image these tests say that they skip.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (os.environ.get("KUBECONFIG") and os.environ.get("ALLRANKS_TEST_IMAGE")),
        reason="KUBECONFIG names no cluster, or ALLRANKS_TEST_IMAGE no image",
    ),
]
BOUND = 240.0
ENDLESS = "import os, time\nprint('rank', os.environ['RANK'], 'is up', flush=True)\nwhile True: time.sleep(0.1)"
Document = dict[str, Any]


class Run:
    """One `allranks run --k8s` in a directory of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.process: subprocess.Popen[str] | None = None

    def argv(self, verb: str, *words: str) -> list[str]:
        return [sys.executable, "-m", "allranks", verb, *words]

    def call(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.argv(verb, *words), cwd=self.place, capture_output=True, text=True, timeout=BOUND)

    def start(self, code: str, *options: str, nodes: int = 2, image: str | None = None) -> Run:
        words = ["--k8s", "--nodes", str(nodes), "--nproc", "1", "--json", "--stop-grace", "3s"]
        words += ["--kind", os.environ.get("ALLRANKS_TEST_KIND", "job"), "--no-check"]
        words += ["--image", image or os.environ["ALLRANKS_TEST_IMAGE"]]
        if "--pod" not in options and os.environ.get("ALLRANKS_TEST_POD"):
            words += ["--pod", os.environ["ALLRANKS_TEST_POD"]]
        argv = self.argv("run", *words, *options, "--", "python3", "-u", "-c", code)
        self.process = subprocess.Popen(
            argv, cwd=self.place, stdin=subprocess.DEVNULL, stdout=(self.place / "out").open("w"),
            stderr=(self.place / "err").open("w"), text=True, start_new_session=True,
        )  # fmt: skip
        return self

    @property
    def run_dir(self) -> Path:
        (found,) = (self.place / "runs").iterdir()
        return found

    def result(self) -> Document:
        """The document on standard output, once it has ended."""
        assert self.process is not None
        code = self.process.wait(BOUND)
        found: Document = json.loads((self.place / "out").read_text())
        assert found["exit"] == code
        return found

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + BOUND
        while not condition():
            assert time.monotonic() < end, f"not so: {what}\n{(self.place / 'err').read_text()}"
            time.sleep(0.2)

    def log(self, rank: int) -> str:
        return "".join(p.read_text() for p in self.run_dir.glob(f"logs/*/rank_{rank:03d}.log"))

    def until_up(self, ranks: int = 2) -> Run:
        def up() -> bool:
            return bool(list(self.place.glob("runs/*"))) and all("is up" in self.log(r) for r in range(ranks))

        self.until(up, "the ranks are up")
        return self

    def said(self) -> str:
        """Lines about the pods."""
        path = next(iter(self.place.glob("runs/*/events.jsonl")), None)
        events = [json.loads(line) for line in path.read_text().splitlines()] if path else []
        return "\n".join(e["message"] for e in events if e["event"] == "job")

    def nothing_left(self) -> None:
        label = f"allranks/run={json.loads((self.run_dir / 'run.json').read_text())['engine']['name']}"
        kinds = "pods,services,configmaps,secrets,jobs.batch"
        argv = ["kubectl", "get", kinds, "-l", label, "-o", "name"]
        self.until(lambda: not subprocess.run(argv, capture_output=True, text=True).stdout.split(), "nothing is left")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    found = Run(tmp_path)
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.send_signal(signal.SIGINT)
        found.process.wait(BOUND)


def test_output_of_all_pods_lands_in_an_ordinary_run_directory(run: Run) -> None:
    code = "import os\nfor i in range(2000): print(os.environ['RANK'], i, 'ü' * 20)\nprint('x' * 100000)"
    result = run.start(code, nodes=3).result()
    assert (result["exit"], result["verdict"], result["left"]) == (0, None, {})
    for rank in range(3):
        lines = run.log(rank).splitlines()
        assert lines == [f"{rank} {i} {'ü' * 20}" for i in range(2000)] + ["x" * 100000]
    assert {"run.json", "events.jsonl", "status.json", "result.json", "logs"} <= {p.name for p in run.run_dir.iterdir()}
    run.nothing_left()


def test_one_ranks_exception_is_the_verdict(run: Run) -> None:
    code = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('out of tune')\ntime.sleep(999)"
    result = run.start(code).result()
    assert result["exit"] == 1
    assert result["verdict"]["where"]["rank"] == 1
    assert "out of tune" in json.dumps(result["verdict"]) + run.log(1)
    run.nothing_left()


def test_ctrl_c_lets_ranks_save_and_removes_everything(run: Run) -> None:
    code = "import os, signal, sys\nsignal.signal(15, lambda *a: (print('saved', flush=True), sys.exit(0)))\n" + ENDLESS
    run.start(code).until_up()
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    assert run.result()["exit"] == 130
    assert "saved" in run.log(0) and "saved" in run.log(1)
    run.nothing_left()


def test_stop_from_elsewhere_and_after_a_dead_follower(run: Run) -> None:
    run.start(ENDLESS).until_up()
    assert run.process is not None
    run.process.kill()
    run.process.wait(BOUND)
    status = json.loads(run.call("status", "--json").stdout)
    assert status["state"] == "orphaned" and "Running" in status["engine"]
    done = run.call("stop")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((run.run_dir / "result.json").read_text())["exit"] == 143
    run.nothing_left()


def test_attach_goes_on_where_a_dead_follower_stopped(run: Run) -> None:
    code = "import os, time\nprint('rank', os.environ['RANK'], 'is up', flush=True)\n"
    code += "for i in range(60): print(i, flush=True); time.sleep(0.5)"
    run.start(code).until_up()
    assert run.process is not None
    run.process.kill()
    run.process.wait(BOUND)
    done = run.call("attach", "--json")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert run.log(rank).splitlines() == [f"rank {rank} is up", *map(str, range(60))]
    run.nothing_left()


def test_an_image_that_is_not_there_is_the_verdict(run: Run, tmp_path: Path) -> None:
    options = ("--pod", plain(tmp_path), "--init-timeout", "20s")
    result = run.start("pass", *options, image="registry.invalid/no/such:1").result()
    assert (result["exit"], result["verdict"]["cause"]) == (4, "k8s-image")
    run.nothing_left()


def test_what_is_missing_is_said_while_pods_wait(run: Run) -> None:
    run.start("pass", "--gpus", "example.com/unheard-of:1")
    run.until(lambda: "Insufficient example.com/unheard-of" in run.said(), "the reason is said")
    assert run.process is not None
    run.process.send_signal(signal.SIGTERM)
    assert run.result()["exit"] == 143
    run.nothing_left()


def test_a_pod_beyond_its_memory_is_the_verdict(run: Run, tmp_path: Path) -> None:
    given = os.environ.get("ALLRANKS_TEST_POD")
    bare = {"spec": {"containers": [{"name": "node"}]}}
    settings: Document = yaml.safe_load(Path(given).read_text()) if given else bare
    settings["spec"]["containers"][0]["resources"] = {"limits": {"memory": "200Mi"}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings))
    code = "import os, time\nif os.environ['RANK'] == '1': x = bytearray(b'x') * (1 << 30)\ntime.sleep(999)"
    result = run.start(code, "--pod", str(tmp_path / "small.yaml")).result()
    assert result["verdict"]["cause"] == "k8s-out-of-memory", result["verdict"]
    assert result["verdict"]["where"]["node"].endswith("-1")
    assert result["exit"] != 0
    run.nothing_left()


def test_pod_0_that_is_taken_away_ends_the_run(run: Run) -> None:
    run.start(ENDLESS, "--lease", "5s").until_up()
    name = json.loads((run.run_dir / "run.json").read_text())["engine"]["name"]
    pods = subprocess.run(["kubectl", "get", "pods", "-l", f"allranks/run={name}", "-o", "name"], capture_output=True,
                          text=True).stdout.split()  # fmt: skip
    first = next(p for p in pods if f"{name}-0" in p)
    subprocess.run(["kubectl", "delete", first, "--grace-period=0", "--force"], capture_output=True, check=True)
    result = run.result()
    assert result["exit"] in (4, 143), result
    run.nothing_left()


def plain(place: Path) -> str:
    (place / "plain.yaml").write_text("spec: {}\n")
    return str(place / "plain.yaml")
