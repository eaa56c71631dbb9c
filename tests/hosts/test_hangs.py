"""Hangs of real process groups: which rank keeps the others waiting, and where it sits."""

import os
import re
import signal
from typing import Any

import pytest
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch, culprit, program
from tests.hosts.waiting import wait_until

pytestmark = pytest.mark.torch


def hung(launch: Launch, *words: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    return launch.start(program("v_hang.py", *words), "--hang-timeout", "6s", *options, nproc=2).result()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("sleep", r"misbehave \(sleeping\)"),
        # Which of the two is named depends on the symbols that this machine's libc has.
        pytest.param(
            "native", r"misbehave \(not answering, in native code: (clock_nano)?sleep(ing)?\b", marks=pytest.mark.slow
        ),
        pytest.param("lock", r"misbehave \(waiting for a lock\)", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_elsewhere(launch: Launch, what: str, says: str) -> None:
    result = hung(launch, what, "2")
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"]) == (5, "straggler"), verdict
    assert culprit(verdict) == ("h2", 2)
    assert re.search(says, verdict["message"]) and "rank 2 on h2 is at v_hang.py" in verdict["message"]
    assert "ranks 0, 1 and 3 wait in all_reduce" in verdict["message"]
    assert list((launch.run_dir / "evidence" / "stacks").glob("rank_*.txt"))
    assert "woken" not in launch.log(2), "a look changes nothing"
    assert launch.alive() == []


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_rank_that_another_launcher_has_started(launch: Launch, launcher: str) -> None:
    """It is not the first of its node, and no child of the agent."""
    pytest.importorskip("accelerate" if launcher == "accelerate" else "torch")
    result = hung(launch, "sleep", "3", options=("--launcher", launcher))
    verdict = result["verdict"]
    assert (result["exit"], verdict["cause"], verdict["culprits"]) == (5, "straggler", [3]), verdict
    assert culprit(verdict) == ("h2", 3)
    assert "rank 3 on h2 is at v_hang.py" in verdict["message"] and "misbehave (sleeping)" in verdict["message"]
    assert "ranks 0-2 wait in all_reduce (v_hang.py" in verdict["message"]
    assert launch.alive() == []


@pytest.mark.slow
def test_a_stopped_rank(launch: Launch) -> None:
    launch.start(program("v_hang.py", "go"), "--hang-timeout", "6s", nproc=2)
    launch.until_running(4)
    pid = wait_until(lambda: pid_on(launch, 3), what="the pid of rank 3")
    os.kill(pid, signal.SIGSTOP)
    verdict = launch.over()["verdict"]
    assert culprit(verdict) == ("h2", 3) and "rank 3 on h2 is stopped" in verdict["message"]


def pid_on(launch: Launch, rank: int) -> int | None:
    """The machine's pid of a rank."""
    host = launch.bed.hosts[rank // 2]
    found = host.processes_with_env(f"RANK={rank}")
    return next((p.pid for p in found if "v_hang.py" in p.command and "runner" in p.command), None)


@pytest.mark.slow
def test_a_rank_that_skips_a_collective(launch: Launch) -> None:
    verdict = hung(launch, "skip", "1")["verdict"]
    assert verdict["cause"] == "collective-mismatch", verdict
    assert culprit(verdict) == ("h1", 1) and "rank 1 is in barrier #4" in verdict["message"]


def test_a_run_in_which_nobody_waits_is_left_alone(launch: Launch) -> None:
    quiet = launch.work / "quiet.py"
    quiet.write_text("import time\nprint('begin', flush=True)\ntime.sleep(20)\n")
    assert launch.start([str(quiet)], "--hang-timeout", "4s").result()["exit"] == 0
    assert launch.events("hang-suspected") and not launch.events("hang")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["go", "construct"])
def test_a_link_that_loses_one_direction(bed2: Bed, launch: Launch, what: str) -> None:
    """All wait and none is behind: the kernel's counters of the ranks' own connections tell the link and its direction.

    `construct`: inside the constructor of DistributedDataParallel, which waits in C++.
    """
    launch.start(program("v_hang.py", what), "--hang-timeout", "8s", nproc=2)
    launch.until_running(4)
    wait_until(lambda: all((launch.work / f"up-{rank}").exists() for rank in range(4)), what="all process groups")
    bed2.host("h2").drop_from(bed2.host("h1"))
    (launch.work / "dropped").touch()
    verdict = launch.result()["verdict"]
    assert verdict["cause"] == "mtu-or-packet-loss", verdict
    assert (verdict["where"]["node"], verdict["where"]["peer"]) == ("h1", "h2"), verdict
    assert "packets from h1 do not reach h2" in verdict["message"]
    assert "not acknowledged" in verdict["evidence"][0]
