"""`run --ray` with real Ray on two hosts: `make test-ray` installs it."""

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts import raying
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch
from tests.hosts.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(raying.LACKING), reason=raying.LACKING)
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray" / "train_pi.py"
BOUND = 300.0  # seconds: Ray starts eight processes a node


@pytest.fixture
def launch(bed2: Bed, tmp_path: Path) -> Iterator[Launch]:
    before = raying.links_left(bed2)
    with raying.share_of_its_processes(bed2):
        yield Launch(bed2, tmp_path)
    assert raying.left(bed2) == []
    assert set(raying.links_left(bed2)) <= set(before)


def start(launch: Launch, *command: str) -> Launch:
    words = [word for option in raying.SMALL for word in ("--ray-start", option)]
    return launch.start(list(command), "--ray", *words, nproc=None, python=raying.PYTHON)


def start_and_kill(launch: Launch, kind: str) -> str:
    """What the verdict says after a kill of one process."""
    start(launch, "python", str(raying.DRIVER), "600")
    wait_until(lambda: (launch.work / "actors").exists(), BOUND, "actors")
    os.kill(raying.pid_of(launch.bed, kind), signal.SIGKILL)
    result = launch.result(BOUND)
    assert result["left"] == {} and launch.alive() == []
    return str(result["verdict"]["message"])


def test_the_driver_has_all_nodes_and_nothing_of_ray_is_left(launch: Launch) -> None:
    """Ray of another user on the same host goes on."""
    port = random.randint(20000, 30000)
    directory = tempfile.mkdtemp(prefix="ray-other-")
    other = launch.bed.hosts[0].popen(
        f"{raying.PYTHON} -m ray.scripts.scripts start --head --port={port} --temp-dir={directory} "
        f"--include-dashboard=false --disable-usage-stats {' '.join(raying.SMALL)} --block"
    )
    try:
        result = start(launch, "python", str(raying.DRIVER), "0").result(BOUND)
        assert (result["exit"], result["verdict"], result["left"]) == (0, None, {}), launch.stderr
        assert "nodes 2 False" in launch.stderr  # a driver is no rank
        assert not list(launch.run_dir.glob("logs/**/ray_rank_*.log"))  # its work was done
        assert other.poll() is None
    finally:
        launch.bed.hosts[0].kill_all()
        other.wait(60)
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("head", "ray-head: rank 0 on h1 was killed by SIGKILL (gcs_server, pid "),
        ("raylet", "ray-worker: rank 1 on h2 was killed by SIGKILL (raylet, pid "),
        ("worker", "ray-worker: rank 1 on h2 was killed by SIGKILL"),
        ("driver", "driver: rank 0 on h1-driver was killed by SIGKILL"),
    ],
)
def test_who_was_killed_is_named(launch: Launch, kind: str, says: str) -> None:
    message = start_and_kill(launch, kind)
    assert message.startswith(says), message
    assert list(launch.run_dir.glob("logs/**/ray_rank_*.log"))


def test_an_exception_of_the_driver_is_its_own(launch: Launch) -> None:
    result = start(launch, "python", str(raying.DRIVER), "0", "fails").result(BOUND)
    message = result["verdict"]["message"]
    assert message.startswith("driver: rank 0 on h1-driver raised ValueError: bad batch (ray_driver.py:"), message
    logs = "".join(path.read_text() for path in launch.run_dir.glob("logs/**/ray_rank_*.log"))
    assert "==> session_latest/logs/gcs_server.out <==" in logs


def test_the_example_runs(launch: Launch) -> None:
    result = start(launch, "python", str(EXAMPLE)).result(BOUND)
    assert result["exit"] == 0 and "step 5/5 on 2 nodes: pi is about 3.1" in launch.stderr, launch.stderr


@pytest.mark.skipif(not raying.has_default(), reason="ray[default] is not installed, and Ray takes no jobs without it")
def test_a_job_is_submitted(launch: Launch) -> None:
    result = start(launch, "ray", "job", "submit", "--", "python", str(raying.DRIVER), "0").result(BOUND)
    assert result["exit"] == 0 and "nodes 2" in launch.stderr, launch.stderr


def test_another_ray_on_one_node_is_found_before_the_start(launch: Launch) -> None:
    site = next(Path(raying.PYTHON).parent.parent.glob("lib/python*/site-packages/ray-*.dist-info"))
    newer = launch.place / "site" / "ray-9.9.9.dist-info"
    newer.mkdir(parents=True)
    (newer / "METADATA").write_text((site / "METADATA").read_text().replace("\nVersion: ", "\nVersion: 9.9.9\nX: ", 1))
    words = ["--ray", "--prelude", f"[ $(hostname) = h1 ] || export PYTHONPATH={newer.parent}"]
    launch.start(["python", str(raying.DRIVER), "0"], *words, nproc=None, python=raying.PYTHON)
    result = launch.result(BOUND)
    assert result["exit"] == 3
    assert "nodes have different versions of Ray: " in result["verdict"]["message"], result["verdict"]
    assert launch.events("rank-started") == []
