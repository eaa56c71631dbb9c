"""The result of a run whose controller could not write one: what Slurm says of its job (writes into its directory)."""

from __future__ import annotations

import re

from allranks.diagnose.slurm_jobs import SlurmJob, ended
from allranks.engines.following import verdict_on
from allranks.exitcodes import NODE_FAILED, TERMINATED
from allranks.findings import Finding
from allranks.protocol.run_facts import RunStart, of_kind
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument
from allranks.runs.regular import read_end
from allranks.runs.result import least_result, write_result

OUTPUT = "slurm.log"  # in the run directory: a link to the job's own output
TAIL = 16 << 10
LATE = 10.0  # seconds that a shared file system may take to show the result of a job that is over
_ABSENT = re.compile(r"No such file or directory|has no /|not found|[Uu]nable to (?:open|create)|couldn't chdir")


def conclude(run: RunDirectory, job: SlurmJob | None, stopped: bool = False) -> ResultDocument:
    """Write result.json, verdict.json and the end of events and status, and return the result.

    A result that the controller has written meanwhile stays.
    """
    written = run.read_result()
    if written is not None:
        return written
    number = run.job or "?"
    result = least_result(run, TERMINATED, None)
    if not stopped:
        result = least_result(run, NODE_FAILED, verdict_on(_finding(run, job, number), 0.9))
    return write_result(run, result, stopped)


def has_begun(run: RunDirectory) -> bool:
    """Return whether a controller has worked in the run."""
    return any(of_kind(run.read_facts()[0], RunStart))


def _how_ended(job: SlurmJob) -> str:
    """Word Slurm's state, with the exit code and the signal as far as it keeps them."""
    figures = {"exit code": job.exit_code, "signal": job.exit_signal}
    return ", ".join([job.state, *(f"{name} {value}" for name, value in figures.items() if value is not None)])


def _finding(run: RunDirectory, job: SlurmJob | None, number: str) -> Finding:
    if job is not None:
        reason = ended(job)
        if reason is not None:
            return reason
    begun = has_begun(run)
    words = _last_words(run)
    how = f" ({_how_ended(job)})" if job is not None else ""
    if begun:
        message = f"the controller of {run.name} in job {number} ended without a result{how}"
        return Finding("unknown", "fail", message, f"see {run.path}/slurm.log", evidence=words)
    if job is None and not words:
        message = f"job {number} has ended before it started, and Slurm no longer knows how"
        remedy = f"where there is accounting: sacct -j {number} -o JobID,State,ExitCode,End"
        return Finding("unknown", "fail", message, remedy)
    absent = not words or any(_ABSENT.search(line) for line in words)
    message = f"job {number} ended{how} before allranks had started in it"
    remedy = (
        f"the working directory, {run.path} and this Python must lie on a file system that the nodes share\n"
        f"see {run.path}/slurm.log, and try: srun --nodes=1 ls -d {run.path}"
    )
    return Finding("remote-path-missing" if absent else "slurm-config", "fail", message, remedy, evidence=words)


def _last_words(run: RunDirectory) -> tuple[str, ...]:
    try:
        text = read_end(run.path / OUTPUT, TAIL).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line.strip()[:300] for line in text.splitlines() if line.strip())[-3:]
