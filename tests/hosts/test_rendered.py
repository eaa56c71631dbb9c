"""What `render kubernetes` and `render skypilot` write, run for real: a host is a pod or a machine of the cloud."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import forked
from tests.examples.pages import ROOT, render_words
from tests.hosts.bed import Bed, missing
from tests.hosts.kubelet import SECRET, Pods
from tests.hosts.launching import BOUND, PYTHON, program
from tests.hosts.waiting import wait_until

EXAMPLES = ROOT / "examples"
SCRIPT = EXAMPLES / "train_lm.py"
DEMO = [str(SCRIPT), "--steps", "3", "--batch", "2", "--context", "64", "--layers", "1", "--width", "64"]
NODES = 3
NAMES = [f"demo-{rank}" for rank in range(NODES)]
PLACE = "import os\nshm = os.statvfs('/dev/shm')\nprint(os.environ['MASTER_ADDR'], shm.f_blocks * shm.f_frsize >> 20)\n"
ODD = "import os, time\nif os.environ['RANK'] == '2': raise ValueError('out of tune')\ntime.sleep(999)\n"
MakeBed = Callable[..., Bed]
IMAGE = {"PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}"}  # its python3 has torch


@pytest.fixture(scope="module")
def pods_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Bed.up(NODES, tmp_path_factory.mktemp("pods-"), names=NAMES) as bed:
        yield bed


def render(what: str, place: Path, program: list[str], *options: str) -> Path:
    """`allranks render` as a person calls it; gives the directory of its files."""
    (place / "work").mkdir(exist_ok=True)
    shape = ["--name", "demo", "--nodes", str(NODES), "--nproc", "1", "--python", PYTHON]
    words = [*shape, "--workdir", str(place / "work"), *options, "--output", str(place / "files"), "--", *program]
    done = forked.call(["render", what, *words], cwd=place / "work", env=os.environ, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    return place / "files"


def render_example(name: str, place: Path) -> Path:
    """Render an example by the command on its page; gives the directory of its files."""
    words = render_words(EXAMPLES / name / "README.md", place / "files")
    done = forked.call(words, cwd=ROOT, env=os.environ, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    return place / "files"


@pytest.fixture
def rendered(pods_bed: Bed, tmp_path: Path) -> Iterator[Callable[..., Pods]]:
    made: list[Pods] = []

    def make(program: list[str], *options: str, lines: str = 'init-timeout = "60s"') -> Pods:
        settings = tmp_path / "work" / "allranks.toml"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(f'runs-dir = "{tmp_path}/runs"\n{lines}\n')
        files = render("kubernetes", tmp_path, program, "--image", "registry.local/train:1", *options)
        text = "---\n".join(path.read_text() for path in sorted(files.glob("*.yaml")))
        made.append(Pods(pods_bed, tmp_path, text).resolve_names())
        return made[-1]

    yield make
    for pods in made:
        pods.end()


def document(place: Path, name: str) -> dict[str, Any]:
    (run,) = (place / "runs").iterdir()
    found: dict[str, Any] = json.loads((run / name).read_text())
    return found


def secret_is_nowhere(place: Path) -> None:
    """Not in what a pod printed, nor in the run directory."""
    files = [p for p in place.rglob("*") if p.is_file() and "mounted" not in p.parts]
    assert files
    assert [str(p) for p in files if SECRET.encode() in p.read_bytes()] == []


# -- Kubernetes ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.torch
def test_the_example_trains_in_two_pods(pods_bed: Bed, tmp_path: Path) -> None:
    """What the page of examples/kubernetes makes: the rendered objects, and the ConfigMap with the program."""
    files = render_example("kubernetes", tmp_path)
    code = {"kind": "ConfigMap", "metadata": {"name": "train-lm"}, "data": {SCRIPT.name: SCRIPT.read_text()}}
    text = "---\n".join([*(path.read_text() for path in sorted(files.glob("*.yaml"))), yaml.safe_dump(code)])
    pods = Pods(pods_bed, tmp_path, text.replace("/tmp/allranks-runs", f"{tmp_path}/runs")).resolve_names()
    try:
        pods.start(1, 0, env=IMAGE)
        assert pods.codes() == [0, 0], pods.log(0)
        assert "ranks     4 in all, 2 a node" in pods.log(0)
        assert "step 10/10 loss" in pods.log(0)
        secret_is_nowhere(tmp_path)
        pods.nothing_left()
    finally:
        pods.end()


@pytest.mark.slow
@pytest.mark.torch
def test_the_demo_trains_in_three_bare_pods(rendered: Callable[..., Pods], tmp_path: Path) -> None:
    pods = rendered(DEMO, "--kind", "pods")
    pods.start(2, 0, 1)
    assert pods.codes() == [0, 0, 0], pods.log(0)
    result = document(tmp_path, "result.json")
    assert (result["exit"], result["verdict"]) == (0, None)
    assert [n["name"] for n in document(tmp_path, "run.json")["nodes"]] == NAMES
    (run,) = (tmp_path / "runs").iterdir()
    logs = sorted(p.relative_to(run).as_posix() for p in run.glob("logs/*/rank_*.log"))
    assert logs == [f"logs/node_{i:02d}_demo-{i}/rank_{i:03d}.log" for i in range(NODES)]
    assert document(tmp_path, "status.json")["master"]["address"] == "demo-0.demo"
    assert "step 3/3 loss" in pods.log(0)
    secret_is_nowhere(tmp_path)
    pods.nothing_left()


ROLES = """
[roles.rollout]
command = "python3 -m http.server {rollout.port.http}"
nodes = 1
ready = "http://{address}:{rollout.port.http}/"
[roles.trainer]
command = "fetch.py {rollout.address} {rollout.port.http}"
nodes = 2
after = ["rollout"]
"""
FETCH = """
import os, sys, urllib.request
urllib.request.urlopen("http://%s:%s" % tuple(sys.argv[1:])).read()
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["ROLE_NAME"], flush=True)
"""


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_roles_are_pods_of_one_run(rendered: Callable[..., Pods], tmp_path: Path, kind: str) -> None:
    """A JobSet has a replicated job for each role, whose pods count from 0; a Job counts all of them."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "fetch.py").write_text(FETCH)
    (tmp_path / "work" / "roles.toml").write_text(ROLES)
    pods = rendered([], "--roles", "roles.toml", "--kind", kind).start(2, 0, 1)
    assert pods.codes() == [0, 0, 0], pods.log(0)
    assert "[trainer " in pods.log(0) and "rank 1 of 2 trainer" in pods.log(0)
    result = document(tmp_path, "result.json")
    assert {name: len(role["nodes"]) for name, role in result["roles"].items()} == {"rollout": 1, "trainer": 2}
    secret_is_nowhere(tmp_path)
    pods.nothing_left()


def test_each_pod_has_its_memory_volume_and_the_first_pod_for_a_master(
    rendered: Callable[..., Pods], tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "place.py").write_text(PLACE)
    pods = rendered(["place.py"], "--shm", "48MB").start(2, 0, 1)
    assert pods.codes() == [0, 0, 0], pods.log(0)
    (run,) = (tmp_path / "runs").iterdir()
    logs = [path.read_text() for path in sorted(run.glob("logs/*/rank_*.log"))]
    assert logs == ["demo-0.demo 48\n"] * NODES
    pods.nothing_left()


@pytest.mark.slow
def test_a_pod_that_is_told_to_go_lets_all_ranks_save(rendered: Callable[..., Pods], tmp_path: Path) -> None:
    """Eviction and `kubectl delete`: SIGTERM to a container's first process."""
    (tmp_path / "work").mkdir()
    pods = rendered(program("v_steps.py")).start(0, 1, 2)
    wait_until(lambda: len(list((tmp_path / "work").glob("up-*"))) == NODES, BOUND, "all ranks are up")
    pods.signal(2, signal.SIGTERM)
    codes = pods.codes()
    assert codes[2] in (143, 4) and 0 not in codes, [pods.log(i)[-400:] for i in range(NODES)]
    assert set(codes) <= {4, 143}
    pods.nothing_left()


# -- SkyPilot ------------------------------------------------------------------------------------------


class Machines:
    """The task's `run:` on every host, with the variables and the home that SkyPilot gives it."""

    def __init__(self, bed: Bed, place: Path, files: Path) -> None:
        self.bed, self.place = bed, place
        (name,) = files.glob("*.yaml")
        self.task: dict[str, Any] = yaml.safe_load(name.read_text())
        self.processes: dict[int, subprocess.Popen[str]] = {}
        for remote, local in self.task["file_mounts"].items():
            target = place / "home" / remote.removeprefix("~/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((files / local).read_bytes())

    def start(self, *ranks: int, env: dict[str, str] | None = None) -> Machines:
        ips = "\n".join(h.address for h in self.bed.hosts[: self.task["num_nodes"]])
        for rank in ranks:
            full = {
                "HOME": str(self.place / "home"), "SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NODE_IPS": ips,
                "SKYPILOT_NUM_NODES": str(self.task["num_nodes"]), "SKYPILOT_NUM_GPUS_PER_NODE": "0",
                "SKYPILOT_TASK_ID": "sky-2026-11-21-14-00-00-000000_demo", "ALLRANKS_JOIN_SECRET": SECRET,
                **(self.task.get("envs") or {}), "RUN": self.task["run"], "OUT": str(self._log(rank)),
                **(env or {}),
            }  # fmt: skip
            line = 'exec bash -c "$RUN" >"$OUT" 2>&1 </dev/null'
            self.processes[rank] = self.bed.hosts[rank].popen(line, env=full, cwd=str(self.place / "work"))
        return self

    def _log(self, rank: int) -> Path:
        return self.place / f"machine-{rank}.log"

    def log(self, rank: int) -> str:
        return self._log(rank).read_text()

    def codes(self) -> list[int]:
        wait_until(lambda: all(p.poll() is not None for p in self.processes.values()), 2 * BOUND, "the task ends")
        return [int(self.processes[rank].returncode) for rank in sorted(self.processes)]

    def nothing_left(self) -> None:
        for host in self.bed.hosts:
            wait_until(lambda h=host: not h.pids(), BOUND, f"nothing is left on {host.name}")

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(BOUND)


@pytest.mark.slow
@pytest.mark.torch
def test_the_example_trains_on_two_machines(pods_bed: Bed, tmp_path: Path) -> None:
    """What the page of examples/skypilot launches: the task there, and allranks.pyz as it is rendered."""
    files = render_example("skypilot", tmp_path)
    shutil.copy(EXAMPLES / "skypilot" / "train.yaml", files)
    shutil.copytree(EXAMPLES, tmp_path / "work")  # its workdir
    machines = Machines(pods_bed, tmp_path, files)
    try:
        machines.start(1, 0, env=IMAGE)
        assert machines.codes() == [0, 0], machines.log(0)
        assert "step 20/20 loss" in machines.log(0)
        (run,) = (tmp_path / "work" / "runs").iterdir()
        result = json.loads((run / "result.json").read_text())
        assert (result["exit"], result["verdict"]) == (0, None)
        assert len(list(run.glob("logs/*/rank_*.log"))) == 2
        assert [n["name"] for n in json.loads((run / "run.json").read_text())["nodes"]] == NAMES[:2]
        secret_is_nowhere(tmp_path)
        machines.nothing_left()
    finally:
        machines.end()
