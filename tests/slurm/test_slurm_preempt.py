"""Rounds of `python -m bench preempt`: Slurm takes a job back, all ranks save one step, and it goes on from there."""

import json
import re
from pathlib import Path

import pytest
from bench.preempt import STOP_GRACE, Play, Round, judge
from tests.hosts.launching import program
from tests.slurm.bed import SlurmBed
from tests.slurm.bed.config import KILL_WAIT
from tests.slurm.jobs import SlurmLaunch

pytestmark = pytest.mark.slow


def test_a_requeued_job_goes_on_at_the_step_that_all_ranks_saved(slurm: SlurmBed, tmp_path: Path) -> None:
    """KillWait is all that ranks have, and the run says so when it tells them, and in the verdict."""
    round_ = Round(0, "requeued", nodes=2, nproc=2, delay=0.5, pause=0.01, saving=0.3, way=0, with_torch=False)
    play = Play(slurm, tmp_path, round_)
    seen = play.play()
    assert judge(round_, seen) == [], seen
    launch = play.launch
    notes = [event["message"] for event in launch.events("note")]
    assert f"ranks have {KILL_WAIT - 2} s (Slurm's KillWait), not the {STOP_GRACE} s of --stop-grace" in notes
    (first, second) = json.loads((launch.run_dir / "result.json").read_text())["attempts"]
    assert first["verdict"]["message"].endswith(f"and ranks had {KILL_WAIT} s (KillWait)")
    assert (first["saved"]["ranks"], second["verdict"]) == (4, None)


def test_a_preemption_by_sigterm_has_the_grace_time(slurm: SlurmBed, tmp_path: Path) -> None:
    """A job that asked for no signal gets SIGTERM while Slurm still calls it running: no --stop-grace is waited for."""
    round_ = Round(0, "taken", nodes=2, nproc=2, delay=0.0, pause=0.01, saving=0.3, way=0, with_torch=False)
    play = Play(slurm, tmp_path, round_)
    seen = play.play()
    assert judge(round_, seen) == [], seen
    launch = play.launch
    evidence = json.loads((launch.run_dir / "result.json").read_text())["verdict"]["evidence"]
    assert any("PreemptTime=" in line for line in evidence), evidence
    status = launch.call("status")
    assert "(GraceTime)" in status.stdout, status.stdout


def test_status_says_when_the_time_of_a_job_is_up(slurm: SlurmBed, tmp_path: Path) -> None:
    """Five minutes are near."""
    launch = SlurmLaunch(slurm, tmp_path)
    launch.script(program("v_saving.py"), directives=["-N2", "--time=5"])
    launch.until_running(2)
    status = launch.call("status").stdout
    assert re.search(r"RUNNING, its time is up in \d+ s \(EndTime\)", status), status
    (launch.work / "go").touch()
    assert launch.written_result()["exit"] == 0
    launch.nothing_left()
