"""The result of a run whose controller could not write one: what Slurm says of its job (writes into its directory)."""

from __future__ import annotations

import re
from typing import Any

from allranks.diagnose.outcomes import DONE, SERVICE, STOPPED
from allranks.diagnose.slurm import Job, ended
from allranks.findings import Finding, Verdict, Where

from .directory import RunDirectory
from .result import untold_result, write_result

TAIL = 16 << 10
_ABSENT = re.compile(r"No such file or directory|has no /|not found|[Uu]nable to (?:open|create)|couldn't chdir")


def conclude(run: RunDirectory, job: Job | None, stopped: bool = False) -> dict[str, Any]:
    """Writes result.json, verdict.json and the end of events and status; gives the result."""
    number = run.job or "?"
    finding = None if stopped else _finding(run, job, number)
    verdict = Verdict(finding, finding.id, 0.9 if finding.id != "unknown" else 0.4) if finding is not None else None
    code = STOPPED if stopped else SERVICE if verdict is not None else DONE
    result = untold_result(run, code, verdict)
    write_result(run, result, stopped)
    return {"schema": 1, **result}


def _finding(run: RunDirectory, job: Job | None, number: str) -> Finding:
    """Slurm's own reason, else how far the controller has come."""
    if job is not None:
        said = ended(job)
        if said is not None:
            return said
    begun = any(event.get("event") == "run-start" for event in run.read_events()[0])
    words = _last_words(run)
    how = f" ({job.state}, exit code {job.exit_code}, signal {job.exit_signal})" if job is not None else ""
    place = Where(node=None)
    if begun:
        message = f"the controller of {run.name} in job {number} ended without a result{how}"
        return Finding("unknown", "fail", message, f"see {run.path}/slurm.log", place, words)
    absent = not words or any(_ABSENT.search(line) for line in words)
    message = f"job {number} ended{how} before allranks had started in it"
    remedy = (
        f"the working directory, {run.path} and this Python must lie on a file system that the nodes share; see "
        f"{run.path}/slurm.log, and try: srun --nodes=1 ls -d {run.path}"
    )
    return Finding("remote-path-missing" if absent else "slurm-config", "fail", message, remedy, place, words)


def _last_words(run: RunDirectory) -> tuple[str, ...]:
    """The end of the job's own output."""
    try:
        with (run.path / "slurm.log").open("rb") as file:
            file.seek(max(0, (run.path / "slurm.log").stat().st_size - TAIL))
            text = file.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line.strip()[:300] for line in text.splitlines() if line.strip())[-3:]
