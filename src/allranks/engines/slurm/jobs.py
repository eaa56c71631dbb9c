"""Slurm's commands: sbatch, scontrol, sacct, scancel (IO, no decisions)."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from allranks.diagnose.slurm_jobs import SACCT_FORMAT, SlurmJob, read_sacct, read_scontrol
from allranks.errors import NodeError, UsageError
from allranks.plan.slurm_commands import knows_containers, read_version

SECONDS = 30.0  # for a command that asks slurmctld; it answers late while it is loaded
SBATCH = ("sbatch", "--parsable")
_JOB = re.compile(r"[0-9]+")
# Which command shows what there is, by what sbatch does not know.
_LOOK_UP = (
    (re.compile("partition", re.IGNORECASE), "sinfo -s"),
    (re.compile("account|association", re.IGNORECASE), "sacctmgr show assoc user=$USER"),
    (re.compile("qos", re.IGNORECASE), "sacctmgr show qos"),
    (re.compile("node configuration|generic resource", re.IGNORECASE), "sinfo -o '%P %D %c %m %G'"),
    (re.compile("option"), "sbatch --help"),
)
_KILL_WAIT = re.compile(r"\bKillWait\s*=\s*(\d+) sec")
_GRACE_TIME = re.compile(r"\bGraceTime=(\d+)")
_NO_CLUSTER = re.compile(r"configuration source|slurm_load_ctl_conf|DNS SRV")


class SlurmError(NodeError):
    """A command of Slurm's failed; the message has its words."""


def require() -> None:
    """Raise UsageError where Slurm's commands are not here."""
    if shutil.which("sbatch") is None:
        raise UsageError("--slurm: sbatch is not on PATH here. Run this on a login node of the cluster")


def submit(script: str, environ: Mapping[str, str], cwd: str) -> str:
    """Hand a script to sbatch; return the job's number."""
    done = _call(SBATCH, script, environ, cwd)
    submitted = _JOB.match(done.stdout.strip())
    if done.returncode != 0 or submitted is None:
        output = words(done.stderr) or done.stdout.strip()
        if _NO_CLUSTER.search(output):
            raise SlurmError(f"sbatch does not find the cluster from this machine: {output}\nhint: sinfo")
        hint = next((f"\nhint: {command}" for words_of, command in _LOOK_UP if words_of.search(output)), "")
        raise SlurmError(f"sbatch refused the job: {output}{hint}")
    return submitted[0]


def look(job: str) -> SlurmJob | None:
    """Return what Slurm knows of a job; None where it knows nothing. Raise SlurmError where slurmctld does not answer.

    slurmctld is asked, which remembers a job for MinJobAge, then the accounting.
    """
    done = _call(["scontrol", "--oneliner", "show", "job", job])
    if done.returncode == 0:
        job_state = read_scontrol(done.stdout)
        if job_state is not None and job_state.preempted:
            return dataclasses.replace(job_state, grace_time=grace_time(job_state.partition))
        if job_state is not None:
            return job_state
    elif "Invalid job id" not in done.stderr:
        raise SlurmError(f"scontrol show job {job}: {words(done.stderr)}")
    return account(job)


def account(job: str) -> SlurmJob | None:
    """Read the job in Slurm's accounting; None without accounting."""
    if shutil.which("sacct") is None:
        return None
    done = _call(["sacct", "-nPX", "-j", job, "-o", SACCT_FORMAT])
    return read_sacct(done.stdout, job) if done.returncode == 0 else None


def tell(job: str, signal: str = "TERM") -> None:
    """Send a signal to the job's batch script alone, where the controller is; raise SlurmError."""
    _check(_call(["scancel", f"--signal={signal}", "--batch", job]), f"scancel --signal={signal} --batch {job}")


def cancel(job: str) -> None:
    """End a job as Slurm does: SIGTERM to everything of the job, KillWait later SIGKILL."""
    _check(_call(["scancel", job]), f"scancel {job}")


def set_comment(job: str, text: str) -> None:
    """Say in the job's comment what belongs to it; a comment that its owner gave stays. Never raises."""
    _update(job, lambda state: not state.comment, f"comment={text}")


def refuse_requeue(job: str) -> bool:
    """Say that a job is not to go back into the queue (scontrol(1): Requeue); False where that did not work."""
    return _update(job, lambda state: state.requeues, "requeue=0")


def _update(job: str, may_be: Callable[[SlurmJob], bool], what: str) -> bool:
    try:
        state = look(job)
        if state is None or not may_be(state):
            return False
        return _call(["scontrol", "update", f"jobid={job}", what]).returncode == 0
    except (SlurmError, UsageError):
        return False


def kill_wait() -> int | None:
    """Return seconds from Slurm's SIGTERM to its SIGKILL; None where that is not known."""
    return _seconds(_KILL_WAIT, configuration)


def grace_time(partition: str) -> int | None:
    """Return seconds from a preemption in a partition to its jobs' end; None where that is not known."""
    return _seconds(_GRACE_TIME, lambda: _shown("partition", partition))


@cache
def configuration() -> str:
    """Return Slurm's configuration, which is asked for once: at a SIGTERM slurmctld may need longer than ranks have.

    Raise SlurmError, UsageError without an answer. The next call asks again: `cache` keeps no exception.
    """
    return _shown("config")


def _shown(*what: str) -> str:
    command = ["scontrol", "--oneliner", "show", *what]
    done = _call(command)
    _check(done, " ".join(command))
    return done.stdout


def _seconds(pattern: re.Pattern[str], ask: Callable[[], str]) -> int | None:
    try:
        match = pattern.search(ask())
    except (SlurmError, UsageError):
        return None
    return int(match[1]) if match else None


@cache
def version() -> tuple[int, int]:
    """Return the version of srun here."""
    return read_version(_call(["srun", "--version"]).stdout)


@cache
def has_pyxis() -> bool:
    """Tell whether srun here starts containers."""
    return knows_containers(_call(["srun", "--help"]).stdout)


def words(stderr: str) -> str:
    """Return the last words of a command of Slurm's, without its name in front."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    reasons = [re.sub(r"^\w+: (error: |fatal: )?", "", line) for line in lines[-3:]]
    return "; ".join(reasons)


def _check(done: subprocess.CompletedProcess[str], what: str) -> None:
    if done.returncode != 0:
        raise SlurmError(f"{what}: {words(done.stderr)}")


def _call(
    argv: Sequence[str], stdin: str = "", environ: Mapping[str, str] | None = None, cwd: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own, so that Ctrl-C does not reach it; raise UsageError, SlurmError."""
    if environ is None:
        environ = {**os.environ, "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}
    try:
        return subprocess.run(
            argv,
            input=stdin,
            env=environ,
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            start_new_session=True,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError(f"--slurm: {argv[0]} is not on PATH here. Run this on a node of the cluster") from None
    except OSError as error:
        raise SlurmError(f"{argv[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} gave no answer within {SECONDS:g} s: is slurmctld loaded, or down?") from None
