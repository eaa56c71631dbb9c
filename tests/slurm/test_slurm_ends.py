"""How Slurm itself ends a job: time limit, preemption, requeue, node failure; each a verdict, ranks saved in time.

Slow: Slurm counts time limits in minutes and looks at them every half minute.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.launching import program
from tests.hosts.waiting import BOUND, wait_until
from tests.slurm.bed import SlurmBed
from tests.slurm.jobs import SlurmLaunch

pytestmark = pytest.mark.slow


def result_of(launch: SlurmLaunch) -> dict[str, Any]:
    assert launch.process is not None
    code = launch.process.wait(BOUND)
    found: dict[str, Any] = json.loads(launch.stdout)
    assert found["exit"] == code
    return found


def test_a_time_limit_is_announced_and_ranks_save(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    launch.outside(program("nasty.py", "save-on-term"), "--partition", "short", "--stop-grace", "10s", nodes=2)
    result = result_of(launch)
    assert (result["exit"], result["verdict"]["cause"]) == (4, "slurm-preempted-or-timeout"), launch.stderr
    assert "time limit" in result["verdict"]["message"]
    assert launch.saved == ["saved-0", "saved-1"]
    launch.nothing_left()


def test_a_time_limit_inside_an_allocation(slurm: SlurmBed, tmp_path: Path) -> None:
    """Nobody announces it there: SIGTERM goes to every process of the step, KillWait later SIGKILL."""
    launch = SlurmLaunch(slurm, tmp_path)
    launch.inside(program("nasty.py", "save-on-term"), salloc=("-N2", "-p", "short"))
    result = result_of(launch)
    assert (result["exit"], result["verdict"]["cause"]) == (4, "slurm-preempted-or-timeout"), launch.stderr
    assert "time limit" in result["verdict"]["message"] and "KillWait" in result["verdict"]["message"]
    assert launch.saved == ["saved-0", "saved-1"], "KillWait is longer than they take"
    launch.nothing_left()


def test_preempted_saved_requeued_and_a_fresh_attempt(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    launch.outside(program("nasty.py", "save-on-term"), "--partition", "low", "--stop-grace", "8s", nodes=2)
    launch.until_running(2)
    uid = json.loads((launch.run_dir / "run.json").read_text())["uid"]
    slurm.call("sbatch", "-p", "high", "-N4", "--exclusive", "--wrap", "sleep 5", "-o", "/dev/null")
    wait_until(lambda: len(launch.saved) == 2, BOUND, "ranks have saved")
    wait_until(lambda: "run-start" in [e["event"] for e in launch.events()][1:], BOUND, "it starts again")
    launch.until("rank-started", 4)
    second = json.loads((launch.run_dir / "run.json").read_text())
    assert (second["slurm"]["restarts"], second["uid"] != uid) == (1, True), "a fresh attempt in the same directory"
    assert [e["attempt"] for e in launch.events("attempt-start")] == [0, 1]
    wait_until(lambda: len(list((launch.run_dir / "logs" / "attempt_1").glob("node_*/rank_*.log"))) == 2, 60.0, "logs")
    assert launch.call("stop", bound=BOUND).returncode == 0
    result = result_of(launch)
    assert [a["attempt"] for a in result["attempts"]] == [0, 1], "followed through the queue to the end"
    assert result["attempts"][0]["verdict"]["cause"] == "slurm-preempted-or-timeout"
    launch.nothing_left()


def test_preempted_for_good(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    launch.outside(program("nasty.py", "save-on-term"), "--partition", "spot", "--stop-grace", "8s", nodes=2)
    launch.until_running(2)
    slurm.call("sbatch", "-p", "high", "-N4", "--exclusive", "--wrap", "sleep 5", "-o", "/dev/null")
    result = result_of(launch)
    assert (result["exit"], result["verdict"]["cause"]) == (4, "slurm-preempted-or-timeout"), launch.stderr
    assert "preempted" in result["verdict"]["message"] and launch.saved == ["saved-0", "saved-1"]


def test_slurm_takes_the_node_that_the_controller_is_on(slurm: SlurmBed, tmp_path: Path) -> None:
    """The controller lives on and gets SIGTERM, as at a scancel: srun's own word tells them apart."""
    launch = SlurmLaunch(slurm, tmp_path)
    launch.script(program("nasty.py", "wait"), directives=["--nodelist=h[3-4]", "-N2", "--no-requeue"], start="")
    launch.until_running(2)
    slurm.scontrol("update", "nodename=h3", "state=down", "reason=test")
    verdict = launch.written_result()["verdict"]
    assert (verdict["cause"], verdict["where"].get("node")) == ("node-network-down", "h3"), verdict
    launch.all_gone()


def test_the_controllers_own_node_dies(slurm: SlurmBed, tmp_path: Path) -> None:
    """Nobody is left there to say anything: the verdict is Slurm's, given by who follows."""
    launch = SlurmLaunch(slurm, tmp_path).outside(program("nasty.py", "wait"), "--sbatch", "--no-requeue", nodes=2)
    launch.until_running(2)
    slurm.hosts.host("h1").power_off()
    slurm.scontrol("update", "nodename=h1", "state=down", "reason=test")
    result = result_of(launch)
    assert (result["exit"], result["verdict"]["cause"]) == (4, "node-network-down"), launch.stderr
    launch.all_gone()


def test_a_fault_of_the_program_is_not_put_back_into_the_queue(slurm: SlurmBed, tmp_path: Path) -> None:
    launch = SlurmLaunch(slurm, tmp_path)
    launch.outside(program("nasty.py", "raise"), "--sbatch", "--requeue", "--no-requeue-code", "42", nodes=2)
    launch.until_running(2)
    (launch.work / "go").touch()
    result = result_of(launch)
    assert (result["exit"], result["no_requeue"][:17]) == (42, "the program's own"), launch.stderr
    job = json.loads((launch.run_dir / "run.json").read_text())["slurm"]["job"]
    assert "Requeue=0" in slurm.call("scontrol", "show", "job", str(job)).stdout
    assert "does not put job" in " ".join(event["message"] for event in launch.events("note"))
