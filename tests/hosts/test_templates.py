"""Ranks on hosts that come from a template: on a spare that takes a place, and after `attach`."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch, program
from tests.hosts.waiting import BOUND, wait_until
from tests.local.test_template import PROGRAM

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def launch(bed4: Bed, tmp_path: Path) -> Iterator[Launch]:
    """Ranks of the tests' DDP program on the first hosts."""
    launch = Launch(bed4, tmp_path)
    (launch.work / "train.py").write_text(PROGRAM)
    yield launch
    launch.forget()


def train(launch: Launch, attempt: int, ranks: int) -> list[bool]:
    """Wait until all ranks of an attempt train; whether each had torch's modules only from its own imports."""
    paths = [launch.work / f"facts-{attempt}-{rank}" for rank in range(ranks)]
    wait_until(lambda: all(p.exists() and p.read_text().endswith("}") for p in paths), BOUND, "ranks train")
    return [json.loads(path.read_text())["fresh"] for path in paths]


def test_a_spare_forks_the_ranks_that_it_takes_over_after_attach(bed4: Bed, launch: Launch) -> None:
    """h3 stands by. The controller is killed, another takes over, and h2 has no power any more."""
    options = ("--env", "OMP_NUM_THREADS=1", "--no-check", "--lease", "10s", "--connect-timeout", "10s")
    launch.start(["train.py"], "--spares", "1", "--retries", "2", *options, hosts="h1,h2,h3")
    assert train(launch, 0, 2) == [True, True]
    wait_until(lambda: len(ready(launch)) == 3, BOUND, "templates on h1, h2 and the spare")
    assert ready(launch) == {"h1", "h2", "h3"}

    launch.kill_launcher()
    launch.begin("attach", "--json", cwd=launch.place)
    launch.until("controller-attached")
    os.kill(launch.rank_pid(1), signal.SIGKILL)
    assert train(launch, 1, 2) == [False, False], "both nodes fork after attach"
    bed4.host("h2").power_off()
    assert train(launch, 2, 2) == [False, False], "the spare forks too"
    used = [(e["attempt"], e["node"]) for e in launch.events("template") if e["state"] == "used"]
    assert sorted(used) == [(1, "h1"), (1, "h2"), (2, "h1"), (2, "h3")]
    (launch.work / "end-2").touch()
    result = launch.result()
    assert result["exit"] == 0 and result["attempts"][1]["replaced"] == [{"node": "h2", "by": "h3"}], result
    assert launch.all_gone()


def ready(launch: Launch) -> set[str]:
    """Hosts that have a template."""
    return {event["node"] for event in launch.events("template") if event["state"] == "ready"}


SLOW_TORCH = "import time\nfrom pathlib import Path\nPath('importing').touch()\ntime.sleep(20)\n"


def test_ranks_that_wait_for_a_template_start_after_attach(launch: Launch) -> None:
    """The controller is killed while the nodes import: another takes the run over, and nothing has failed."""
    folder = launch.work / "slow"
    folder.mkdir()
    (folder / "torch.py").write_text(SLOW_TORCH)
    options = ("--preload", "torch", "--env", f"PYTHONPATH={folder}", "--no-check", "--lease", "60s")
    launch.start(program("v_saving.py"), *options, hosts="h1,h2")
    launch.until("gate-proved")
    wait_until((launch.work / "importing").exists, BOUND, "a template imports")
    wait_until(lambda: os.path.getsize(launch.run_dir / "status.json") > 0, BOUND, "status.json")
    assert launch.events("rank-started") == [], "the ranks wait"
    launch.kill_launcher()
    launch.begin("attach", "--json", cwd=launch.place)
    launch.until("controller-attached")
    launch.until_running(2)
    assert launch.events("fault") == []
    (launch.work / "go").touch()
    result = launch.result()
    assert (result["exit"], result["verdict"], len(result["attempts"])) == (0, None, 1), result
    assert launch.all_gone()
