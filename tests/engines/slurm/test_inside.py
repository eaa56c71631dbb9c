"""What Slurm's words and states mean for the run inside the job. The words are recorded from Slurm 22.05."""

import subprocess
import time
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from allranks.cluster.slurm_allocation import MADE_BY_ALLRANKS, Allocation, read_allocation
from allranks.diagnose.slurm_jobs import SlurmJob, nodes_at_fault, script_ended, step_ended
from allranks.engines.slurm import jobs
from allranks.engines.slurm import reach as reach_module
from allranks.engines.slurm.reach import StepReach
from allranks.errors import UsageError
from allranks.findings import Finding
from allranks.plan.slurm_commands import WARNING_SIGNAL
from allranks.settings import RunSpec

BATCH_HOST_FAILED = """srun: error: Node failure on h3
srun: Job step aborted: Waiting up to 8 seconds for job step to finish.
srun: got SIGCONT
srun: forcing job termination
"""
STEP_FAILED = """srun: Job step aborted: Waiting up to 8 seconds for job step to finish.
0: slurmstepd-h1: error: *** STEP 7.0 ON h1 FAILED (non-zero exit code or other failure mode) ***
"""
STEP_CANCELLED = """srun: got SIGCONT
srun: forcing job termination
0: slurmstepd-h1: error: *** STEP 15.0 ON h1 CANCELLED AT 2026-11-22T07:13:38 ***
srun: Job step aborted: Waiting up to 8 seconds for job step to finish.
"""
NODE_OF_THE_STEP_FAILED = """srun: error: Node failure on h4
srun: Job step aborted: Waiting up to 8 seconds for job step to finish.
0: slurmstepd-h3: error: *** STEP 12.0 ON h3 CANCELLED AT 2026-11-22T07:12:09 DUE TO NODE FAILURE, SEE SLURMCTLD LOG \
FOR DETAILS ***
"""
TASK_KILLED = """srun: error: h2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=1.0
0: slurmstepd-h1: error: *** STEP 1.0 ON h1 CANCELLED AT 2026-11-22T07:09:00 ***
srun: error: h3: task 2: Killed
srun: error: h4: task 3: Killed
srun: error: h1: task 0: Killed
srun: Force Terminated StepId=1.0
"""
TASK_FAILED = """srun: error: h2: task 1: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=1.0
srun: error: h3: task 2: Terminated
"""
NODES = ("h1", "h2", "h3", "h4")


def allocation(batch: bool = True, made_by_allranks: bool = False) -> Allocation:
    return Allocation("7", NODES, batch=batch, made_by_allranks=made_by_allranks)


BATCH, SHELL = allocation(), allocation(batch=False)


@pytest.fixture(autouse=True)
def kill_wait_of_6_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach_module.jobs, "kill_wait", lambda: 6)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`asked(job, printed, …)`: the finding of a run whose orderly end a SIGTERM of Slurm's began."""

    def ask(
        job: SlurmJob,
        printed: str = "",
        where: Allocation = BATCH,
        parent: str = "/bin/bash job.sh",
        warned_t: float | None = None,
    ) -> Finding | None:
        monkeypatch.setattr(reach_module, "command_of", lambda pid: parent)
        engine = StepReach(RunSpec(), [], where)
        engine.warned_t = warned_t
        monkeypatch.setattr(engine, "printed", lambda: printed)
        monkeypatch.setattr(engine, "_look", lambda: job)
        return engine.finding(is_stopped=True)

    return ask


LOST, ENDED = "node-network-down", "slurm-config"


def over(code: int, number: int, reason: str = "", restarts: int = 0, state: str = "COMPLETING") -> SlurmJob:
    return SlurmJob("7", state, reason, exit_code=code, exit_signal=number, restarts=restarts)


COMPLETES = over(0, 0)
LAUNCH_FAILED = over(0, 10, "JobLaunchFailure")
NOT_ZERO = over(3, 0, "NonZeroExitCode", state="FAILED")


@pytest.mark.parametrize(
    ("job", "printed", "cause", "says"),
    [
        pytest.param(over(0, 15, "NodeDown"), BATCH_HOST_FAILED, LOST, "h3 failed", id="batch host failed"),
        pytest.param(over(0, 0, restarts=1), BATCH_HOST_FAILED, LOST, "h3 failed", id="batch host failed, requeued"),
        pytest.param(over(0, 0, restarts=1), NODE_OF_THE_STEP_FAILED, LOST, "h4 failed", id="another node, requeued"),
        pytest.param(LAUNCH_FAILED, STEP_FAILED, ENDED, "script was ended by SIGUSR1", id="script ended by a signal"),
        pytest.param(NOT_ZERO, STEP_FAILED, ENDED, "script ended (exit code 3)", id="script ended with a code"),
        pytest.param(COMPLETES, STEP_CANCELLED, ENDED, "script ended (exit code 0)", id="script ended well"),
        pytest.param(over(0, 15), STEP_CANCELLED, "slurm-cancelled", "was cancelled", id="cancelled"),
        pytest.param(over(143, 0), STEP_CANCELLED, "slurm-cancelled", "was cancelled", id="cancelled, with a trap"),
        pytest.param(over(0, 0, restarts=1), "", "slurm-preempted-or-timeout", "back into the queue", id="requeued"),
    ],
)
def test_how_the_job_ended(asked: Any, job: SlurmJob, printed: str, cause: str, says: str) -> None:
    finding = asked(job, printed)
    assert finding is not None and finding.id == cause, finding
    assert says in finding.message
    assert finding.where.node == (says.split()[0] if "failed" in says else None)


def test_the_own_end_of_a_script_counts_only_below_one(asked: Any) -> None:
    """`exec allranks` is the script, and salloc has none: there a job that completes was cancelled."""
    assert asked(COMPLETES, STEP_CANCELLED, parent="slurmstepd: [7.batch]").id == "slurm-cancelled"
    assert asked(COMPLETES, STEP_CANCELLED, SHELL).id == "slurm-cancelled"


def test_a_signal_name_in_the_fix_is_one_that_sh_takes() -> None:
    finding = script_ended(SlurmJob("7", "FAILED", exit_code=0, exit_signal=12))
    assert finding is not None and "`trap '' USR2`" in finding.remedy


# -- the end of srun -----------------------------------------------------------------------------------

ORDER = dict.fromkeys(NODES, 0)


def test_the_task_that_srun_ended_the_step_for() -> None:
    assert nodes_at_fault(TASK_KILLED, ORDER) == {"h2": "Killed"}
    assert nodes_at_fault(TASK_FAILED, ORDER) == {"h2": "Exited with exit code 1"}
    assert nodes_at_fault(TASK_KILLED, {"h9": 0}) == nodes_at_fault("srun: error: h1: task 0: Killed\n") == {}
    finding = step_ended(TASK_KILLED, nodes_at_fault(TASK_KILLED, ORDER), NODES, 137)
    assert (finding.where.node, finding.id, finding.check) == ("h2", "agent-killed", "slurm")
    assert finding.message == "h2: srun ended the step because of its task there: Killed"


def test_a_task_that_never_started_is_another_matter() -> None:
    words = "srun: error: Task launch for StepId=1.0 failed on node h3: Communication connection failure"
    finding = step_ended(words, nodes_at_fault(words, ORDER), ["h1", "h2"], 1)
    assert (finding.where.node, finding.id) == ("h3", "node-network-down")
    assert finding.message == "h3: Slurm could not start its task: Communication connection failure"


def test_an_end_without_a_task_quotes_srun() -> None:
    finding = step_ended("srun: error: Unable to create step for job 7: Job/step already completing", {}, NODES, 1)
    assert (finding.id, finding.where.node) == ("slurm-config", None)
    assert "exit code 1" in finding.message and "Unable to create step" in finding.message
    assert "it said nothing" in step_ended("", {}, NODES, 0).message


# -- in the words of how the job was started -------------------------------------------------------------


def environ(**more: str) -> dict[str, str]:
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h[1-4]", **more}


def test_whose_script_it_is() -> None:
    own = read_allocation(environ(ENVIRONMENT="BATCH", **{MADE_BY_ALLRANKS: "1"}))
    user = read_allocation(environ(ENVIRONMENT="BATCH"))
    shell = read_allocation(environ(**{MADE_BY_ALLRANKS: "1"}))  # a shell that inherited it
    assert [a.made_by_allranks for a in (own, user, shell) if a is not None] == [True, False, False]


@pytest.mark.parametrize(
    ("where", "says", "says_not"),
    [
        (allocation(made_by_allranks=True), ["scancel leaves", "`allranks stop`"], ["time limit", "#SBATCH"]),
        (BATCH, ["time limit", f"#SBATCH --signal=B:{WARNING_SIGNAL}@45", "exec allranks run"], ["salloc"]),
        (SHELL, ["time limit", "salloc --signal=USR1@"], ["#SBATCH", "--sbatch"]),
    ],
    ids=["made by allranks", "own script", "salloc"],
)  # fmt: skip
def test_a_short_kill_wait_is_said_with_what_helps_there(
    where: Allocation, says: list[str], says_not: list[str]
) -> None:
    (note,) = StepReach(RunSpec(), [], where).remarks()
    assert "6 s" in note and all(text in note for text in says), note
    assert not any(text in note for text in says_not), note
    assert StepReach(RunSpec.of(stop_grace=4.0), [], where).remarks() == []


@pytest.mark.parametrize(
    ("where", "option"),
    [(allocation(made_by_allranks=True), "--sbatch --time"), (BATCH, "#SBATCH --time"), (SHELL, "salloc --time")],
)
def test_the_fix_of_a_time_limit_names_an_option_that_is_there(asked: Any, where: Allocation, option: str) -> None:
    finding = asked(SlurmJob("7", "TIMEOUT", limit="00:01:00"), where=where)
    assert option in finding.remedy
    assert ("SIGTERM comes --stop-grace before the end" in finding.remedy) is where.made_by_allranks


@pytest.mark.parametrize(("announced", "words"), [(-900, "preempted"), (-60, "time limit was nearly up")])
def test_an_announced_end_is_told_by_when_it_was_announced(asked: Any, announced: float, words: str) -> None:
    """Ranks may take minutes to end: the limit is nearer then than when Slurm sent its signal."""
    now = time.time()
    end = datetime.fromtimestamp(now + 30).isoformat()
    assert words in asked(SlurmJob("7", "RUNNING", end=end), warned_t=now + 30 + announced).message


# -- heterogeneous jobs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [{"SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST": ""}, {"SLURM_HET_SIZE": "3"}],
    ids=["salloc", "sbatch"],
)
def test_a_heterogeneous_job_is_refused(more: dict[str, str]) -> None:
    """salloc names no nodes there, so it looked like no allocation: the submit host trained alone, exit 0."""
    with pytest.raises(UsageError, match=r"job 7 is heterogeneous: its \d components"):
        read_allocation(environ(**more))
    assert read_allocation(environ(SLURM_HET_SIZE="1")) is not None


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        (SlurmJob("7", "RUNNING"), None),
        (SlurmJob("7", "COMPLETING"), 4.0),
        (SlurmJob("7", "RUNNING", preempted=True, preempt_time="now", partition="low"), 8.0),
    ],
    ids=["goes on", "ended", "preempted"],
)
def test_ranks_have_what_slurm_leaves_them(
    monkeypatch: pytest.MonkeyPatch, job: SlurmJob, seconds: float | None
) -> None:
    """Two seconds less, in which the result is written."""
    now = datetime.fromtimestamp(time.time()).isoformat()
    known = replace(job, preempt_time=now, grace_time=10) if job.preempted else job
    monkeypatch.setattr(reach_module.jobs, "look", lambda number: known)
    left = StepReach(RunSpec(), [], BATCH).time_left()
    assert (left and round(left.seconds)) == seconds


def test_the_grace_time_of_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `scontrol --oneliner show partition` of Slurm 22.05 has it."""
    text = "PartitionName=low AllowGroups=ALL Default=NO QoS=N/A GraceTime=10 Hidden=NO PreemptMode=REQUEUE"
    done = subprocess.CompletedProcess([], 0, text, "")
    monkeypatch.setattr(reach_module.jobs, "_call", lambda argv: done)
    assert reach_module.jobs.grace_time("low") == 10
    done.stdout = ""
    assert reach_module.jobs.grace_time("low") is None


def test_kill_wait_is_asked_for_until_slurmctld_has_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for at the start. At SIGTERM ranks have no time to lose by a slurmctld that does not answer."""
    monkeypatch.undo()  # of `kill_wait_of_6_s`
    answers = [(1, ""), (0, "SlurmctldPort = 6817\nKillWait                = 30 sec\n")]
    monkeypatch.setattr(jobs, "_call", lambda argv: subprocess.CompletedProcess(argv, *answers.pop(0), ""))
    jobs.configuration.cache_clear()
    assert [jobs.kill_wait(), jobs.kill_wait(), jobs.kill_wait()] == [None, 30, 30]
    jobs.configuration.cache_clear()
