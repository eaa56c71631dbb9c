"""A rank that fails by itself in a real Gloo group: the verdict names cause and rank, and blames no victim."""

import json
import os
import signal

import pytest
from tests.control_groups import small_control_group
from tests.hosts.bed import Bed
from tests.hosts.launching import Launch, program
from tests.hosts.provoking import explained

pytestmark = pytest.mark.torch
USER = "program-exception"
SECOND = ("h2", 1)


def crash(launch: Launch, *words: str) -> Launch:
    return launch.start(program("p_crash.py", *words))


# -- exceptions ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "cause", "says"),
    [
        ("raise", USER, "rank 1 on h2 raised ValueError: bad batch 3 (p_crash.py:"),
        ("segfault", "segfault-native", "crashed with SIGSEGV"),
        # Nothing says why: no exception, no signal. Its peer, which lost the connection, is not blamed.
        ("leave", "rank-exited-early", "rank 1 on h2 ended with code 0"),
        ("address-space", "host-out-of-memory", "raised MemoryError"),
        ("loader", "dataloader-worker-killed", "rank 1 on h2 raised"),
    ],
)
def test_a_rank_that_fails_by_itself(launch: Launch, what: str, cause: str, says: str) -> None:
    verdict = explained(crash(launch, what, "1"), cause, SECOND, says, victims=[0])
    if what == "raise":
        (launch.run_dir / "verdict.json").unlink()
        (launch.run_dir / "result.json").unlink()
        again = json.loads(launch.call("diagnose", "--json").stdout)
        assert {**again, "runners_up": None} == {**verdict, "runners_up": None}


@pytest.mark.slow
def test_the_same_exception_on_all(launch: Launch) -> None:
    crash(launch, "raise", "all")
    explained(launch, USER, (None, None), "every rank raised ValueError: bad batch 3", victims=[])


def test_a_module_that_one_node_does_not_have(bed2: Bed, launch: Launch) -> None:
    place = launch.place / "project"
    place.mkdir()
    (place / "tokens_of_the_project.py").touch()
    bed2.host("h2").mount_empty(place)
    crash(launch, "import", "all", str(place))
    explained(launch, "missing-module", SECOND, "No module named 'tokens_of_the_project'", victims=[0])


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rank_killed_from_outside(launch: Launch) -> None:
    crash(launch, "go", "none").until_running(2)
    os.kill(launch.rank_pid(1), signal.SIGKILL)
    verdict = explained(launch, "rank-killed", SECOND, "killed by SIGKILL", "not by allranks", victims=[0])
    assert "journalctl" in verdict["remedy"]


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_limit_of_a_control_group(launch: Launch) -> None:
    with small_control_group() as group:
        crash(launch, "control-group", "1", str(group))
        explained(launch, "host-out-of-memory", SECOND, "killed by SIGKILL", "out of memory", victims=[0])


# -- data and checkpoints --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk_under_a_checkpoint(bed2: Bed, launch: Launch) -> None:
    place = launch.place / "checkpoints"
    place.mkdir()
    bed2.host("h2").small_tmpfs(place, "1m")
    crash(launch, "save", "all", str(place))
    explained(launch, "disk-full", SECOND, "rank 1 on h2 raised", victims=[0])


@pytest.mark.slow
def test_a_corrupt_checkpoint_on_one_node(bed2: Bed, launch: Launch) -> None:
    import torch

    place = launch.place / "checkpoints"
    place.mkdir()
    torch.save({"weights": torch.zeros(10_000)}, place / "model.pt")
    half = (place / "model.pt").read_bytes()[:20_000]
    (launch.place / "half.pt").write_bytes(half)
    bed2.host("h2").mount_empty(place)
    bed2.host("h2").run(["cp", str(launch.place / "half.pt"), str(place / "model.pt")])
    crash(launch, "load", "all", str(place))
    explained(launch, "checkpoint-unreadable", SECOND, "rank 1 on h2 raised", victims=[0])
