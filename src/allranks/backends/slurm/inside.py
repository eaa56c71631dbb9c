"""The Slurm job that this controller runs in: its earlier start, how it wants us to end, what it says of the end (IO).

Slurm tells a batch script before the time limit or a preemption by the signal that we asked for (USR1). SIGTERM is
`allranks stop` where the job goes on, else Slurm's own end: then KILL_WAIT is all that is left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from allranks.cluster.slurm import Allocation, read_allocation
from allranks.diagnose.slurm import Job, cancelled, ended, nodes_at_fault, out_of_memory, warned
from allranks.errors import NodeError, UsageError
from allranks.findings import Finding
from allranks.plan.slurm import WARN_BEFORE
from allranks.runs.directory import RunDirectory

MARGIN = 2.0  # seconds before Slurm's SIGKILL in which the result is written
LOG_TAIL = 8 << 10
LINGER = 3600.0  # seconds, the longest GraceTime that is waited for
LOOK_EVERY = 5.0


@dataclass
class Inside:
    """One controller's job. `warned_t` is when Slurm announced the end; `told` gives what our step has printed."""

    SIGNAL: ClassVar[int] = signal.SIGUSR1

    allocation: Allocation
    warned_t: float | None = None
    told: Callable[[], str] = str
    output: Path | None = None

    @property
    def document(self) -> dict[str, Any]:
        """What run.json has of it."""
        own = self.allocation
        found = {"job": own.job, "batch": own.batch, "restarts": own.restarts, "nodes": list(own.nodes)}
        return {"slurm": found}

    def run_directory(self, runs_dir: str) -> RunDirectory | None:
        """The one that is there for this job: made by who submitted it, or by its start before a requeue."""
        named = os.environ.pop("ALLRANKS_RUN_DIR", None)
        found = RunDirectory(Path(named)) if named else None
        if found is None and self.allocation.restarts:
            mine = [run for run in RunDirectory.list_runs(Path(runs_dir)) if run.job == self.allocation.job]
            found = mine[-1] if mine else None
        self.output = found.path / "slurm.log" if found is not None else None
        return found

    def remarks(self, stop_grace: float) -> list[str]:
        """Where Slurm gives ranks less time than asked for."""
        wait = kill_wait()
        if wait is None or stop_grace <= wait - MARGIN:
            return []
        at = f"Slurm's KillWait is {wait} s: scancel"
        if self.allocation.batch:
            return [
                f"{at} leaves ranks that long to save, not the {stop_grace:g} s of --stop-grace (`allranks stop` does)"
            ]
        return [
            f"{at} and the time limit leave ranks that long to save, not the {stop_grace:g} s of --stop-grace; "
            f"in a job of `allranks run --slurm` they are told {WARN_BEFORE} s and --stop-grace before the limit"
        ]

    def warning(self) -> None:
        """Slurm has announced the end."""
        self.warned_t = time.time()

    def linger(self) -> None:
        """After the orderly end before a preemption: Slurm puts back into the queue only a job that still runs when the
        GraceTime is over, and ends this process then (SIGTERM)."""
        if not self.allocation.batch:
            return
        began = time.monotonic()
        while time.monotonic() - began < LINGER:
            job = self._look()
            if job is None or job.state != "RUNNING" or not (job.preempted and job.requeues):
                return
            time.sleep(LOOK_EVERY)

    def time_left(self) -> float | None:
        """Seconds until SIGKILL where Slurm is ending the job by itself; None where it goes on, or nobody knows."""
        job = self._look()
        if job is None or job.state == "RUNNING":
            return None
        return max(0.0, (kill_wait() or 0) - MARGIN)

    def finding(self, stopped: bool) -> Finding | None:
        """Slurm's own reason for the end of the ranks; None where it has none."""
        job = self._look()
        if job is None:
            return None
        if self.warned_t is not None:
            return warned(job, self.warned_t, time.time())
        if job.state == "RUNNING" and job.preempted and stopped:
            return warned(job, time.time(), time.time())
        if job.state == "RUNNING" and out_of_memory(self.told()):
            return ended(job.told("OUT_OF_MEMORY", ""), line=out_of_memory(self.told()))
        said = cancelled(self.told()) or cancelled(self._own_output())
        if job.state != "RUNNING" or (said is not None and said[0] != "CANCELLED"):
            state = said[0] if said is not None else "CANCELLED" if job.state == "COMPLETING" and stopped else job.state
            line = said[1] if said is not None else ""
            return ended(job.told(state, self._failed_node()), kill_wait(), line)
        return None

    def _failed_node(self) -> str:
        """The one node that srun complains of; slurmctld says only that one of the job has failed."""
        names = list(nodes_at_fault(self.told(), dict.fromkeys(self.allocation.nodes, 0)))
        return names[0] if len(names) == 1 else ""

    def _look(self) -> Job | None:
        from . import jobs

        try:
            return jobs.look(self.allocation.job)
        except (NodeError, UsageError):
            return None

    def _own_output(self) -> str:
        """The end of the job's own output: slurmstepd writes there why it ends the batch script."""
        if self.output is None:
            return ""
        try:
            with self.output.open("rb") as file:
                file.seek(max(0, self.output.stat().st_size - LOG_TAIL))
                return file.read(LOG_TAIL).decode("utf-8", "replace")
        except OSError:
            return ""


def kill_wait() -> int | None:
    """Seconds from Slurm's SIGTERM to its SIGKILL; None where it is not known."""
    from . import jobs

    try:
        return jobs.kill_wait()
    except (NodeError, UsageError):
        return None


def inside(environ: Mapping[str, str]) -> Inside | None:
    """The job we are in."""
    allocation = read_allocation(environ)
    return Inside(allocation) if allocation is not None else None
