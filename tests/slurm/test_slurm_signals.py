"""SIGUSR1 and SIGUSR2 as Slurm sends them: each rank gets each once, whichever processes Slurm had reached."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.hosts.launching import BOUND, program
from tests.hosts.waiting import wait_until
from tests.slurm.bed import SlurmBed
from tests.slurm.jobs import SlurmLaunch

from allranks.gang.passed_signals import SAME_SECONDS
from allranks.gang.saving import RECENT


def arrived(launch: SlurmLaunch) -> int:
    """How many signals the ranks have written down so far."""
    return sum(path.read_text().count("GOT ") for path in launch.run_dir.glob("logs/node_*/rank_*.log"))


def counted(launch: SlurmLaunch, ranks: int) -> list[dict[str, int]]:
    """What each rank has counted, once the run has ended well."""
    (launch.work / "go").touch()
    result = launch.written_result()
    assert (result["exit"], result["verdict"]) == (0, None), result
    return [json.loads(launch.log(rank).split("COUNTED ", 1)[1]) for rank in range(ranks)]


@pytest.mark.parametrize("start", ["exec", pytest.param("", marks=pytest.mark.slow)], ids=["exec", "below the shell"])
def test_scancel_in_all_its_ways(slurm: SlurmBed, tmp_path: Path, start: str) -> None:
    """To all steps, to the batch script alone, to both: Slurm signals the shell or what the shell has become."""
    launch = SlurmLaunch(slurm, tmp_path)
    job = launch.script(program("v_signals.py"), directives=["-N3"], start=start)
    launch.until_running(3)
    ways = [["--signal=USR1"], ["--signal=USR2"], ["--full", "--signal=USR1"]]
    if start == "exec":  # else the shell, which has no trap, would end
        ways += [["--batch", "--signal=USR1"], ["--full", "--signal=USR2"]]
    else:
        ways.pop()
    for number, words in enumerate(ways, start=1):
        slurm.call("scancel", *words, job)
        wait_until(lambda n=number: arrived(launch) >= 3 * n, BOUND, f"{words} at three ranks")
        sent = time.time()
        wait_until(lambda t=sent: time.time() > t + SAME_SECONDS, BOUND, "the next one is another signal")
    if start == "exec":
        assert counted(launch, 3) == [{"SIGUSR1": 3, "SIGUSR2": 2}] * 3
    else:
        slurm.call("scancel", "--batch", "--signal=USR1", job)
        verdict = launch.written_result()["verdict"]
        assert verdict["cause"] == "slurm-config", verdict
        assert "batch script was ended by SIGUSR1" in verdict["message"]
        assert [launch.log(rank).count("GOT") for rank in range(3)] == [2] * 3
    launch.nothing_left()


@pytest.mark.slow
def test_in_an_allocation_the_steps_get_it(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path).inside(program("v_signals.py"), salloc=("-N2",)).until_running(2)
    slurm.call("scancel", "--signal=USR1", launch.job)
    wait_until(lambda: arrived(launch) >= 2, BOUND, "SIGUSR1 at two ranks")
    assert counted(launch, 2) == [{"SIGUSR1": 1}] * 2
    launch.nothing_left()


@pytest.mark.slow
def test_the_warning_that_a_script_asks_for(slurm: SlurmBed, tmp_path: Path) -> None:
    """`--signal=USR1@5` goes to the steps, with `B:` to the batch script alone; in an own script it is the ranks'.

    Slurm sends it up to half a minute early: 5 s are in the second half of the partition's minute.
    """
    launches = []
    for option in ("USR1@5", "B:USR1@5"):
        (tmp_path / option).mkdir()
        launch = SlurmLaunch(slurm, tmp_path / option)
        launch.script(program("v_signals.py"), directives=["-N2", "--partition=short", f"--signal={option}"])
        launches.append(launch)
    for launch in launches:
        launch.until_running(2)
    for launch in launches:
        wait_until(lambda one=launch: arrived(one) >= 2, BOUND, "SIGUSR1 at two ranks")
        assert counted(launch, 2) == [{"SIGUSR1": 1}] * 2
    launches[-1].nothing_left()


def test_a_script_made_by_us_is_warned_by_another_signal(slurm: SlurmBed, tmp_path: Path) -> None:
    """SIGUSR1 to its batch script is the ranks' too; only SIGXCPU means that the nodes are taken back."""
    launch = SlurmLaunch(slurm, tmp_path).outside(program("v_signals.py"), nodes=2).until_running(2)
    slurm.call("scancel", "--batch", "--signal=USR1", launch.job)
    wait_until(lambda: arrived(launch) >= 2, BOUND, "SIGUSR1 at two ranks")
    launch.signal(signal.SIGUSR2)  # to who follows from the login node
    wait_until(lambda: arrived(launch) >= 4, BOUND, "SIGUSR2 at two ranks")
    slurm.call("scancel", "--batch", "--signal=XCPU", launch.job)
    result = launch.result()
    assert (result["exit"], result["verdict"]["cause"]) == (4, "slurm-preempted-or-timeout"), launch.stderr
    for name in ("SIGUSR1", "SIGUSR2"):
        assert [launch.log(rank).count(f"GOT {name}") for rank in (0, 1)] == [1, 1]
    launch.nothing_left()


def test_the_end_of_srun_is_the_end_of_the_run(slurm: SlurmBed, tmp_path: Path) -> None:
    """A task of the step is killed: srun ends the step, before the lease is over."""
    launch = SlurmLaunch(slurm, tmp_path).inside(program("nasty.py", "wait"), "--lease", "20m").until_running(4)
    os.kill(launch.task_pid("h2"), signal.SIGKILL)
    result = launch.result()
    verdict = result["verdict"]
    assert (result["exit"], verdict["where"].get("node")) == (4, "h2"), verdict
    assert "Killed" in verdict["message"] and "srun" in verdict["message"], verdict
    launch.nothing_left()


NOTICES = 50


@pytest.mark.slow
def test_every_notice_is_one_step_on_all_ranks(slurm: SlurmBed, tmp_path: Path) -> None:
    """As before a preemption: Slurm's signal to steps and batch script, again and again, then the end of the time."""
    launch = SlurmLaunch(slurm, tmp_path)
    job = launch.script(program("v_saving.py", "0.002", "handler"), "--nproc", "2", directives=["-N3"])
    launch.until_running(6)
    ways = (["--signal=USR1"], ["--full", "--signal=USR1"], ["--batch", "--signal=USR1"])
    for number in range(1, NOTICES):
        slurm.call("scancel", *ways[number % len(ways)], job)
        wait_until(lambda n=number: len(launch.events("saved")) >= n, BOUND, f"save {number}")
        sent = time.time()
        wait_until(lambda t=sent: time.time() > t + SAME_SECONDS, BOUND, "the next one is another signal")
    wait_until(lambda: time.time() > launch.events("saved")[-1]["t"] + RECENT, BOUND, "another save before the end")
    slurm.call("scancel", "--batch", "--signal=XCPU", job)
    verdict = launch.written_result()["verdict"]
    assert verdict["cause"] == "slurm-preempted-or-timeout", verdict
    saved = [(event["ranks"], event["of"], event["others"]) for event in launch.events("saved")]
    assert saved == [(6, 6, {})] * NOTICES
    agreed = [event["step"] for event in launch.events("save-agreed")]
    times: list[list[float]] = []
    for rank in range(6):
        lines = [line.split() for line in launch.log(rank).splitlines()]
        assert [int(line[1]) for line in lines if line[0] == "SAVED"] == agreed
        times.append([float(line[1]) for line in lines if line[0] == "GOT"])
    spreads = [max(at) - min(at) for at in zip(*times, strict=True)]
    assert max(spreads) < 1.0, spreads
    print(f"{NOTICES} of {NOTICES} at one step; SIGUSR1 within {max(spreads) * 1000:.0f} ms on all ranks")
    launch.nothing_left()
