"""The Slurm job that this controller runs in: its earlier start, how it wants us to end, what it says of the end (IO).

Slurm tells a batch script before the time limit or a preemption by the signal that we asked for (SIGXCPU). SIGTERM is
`allranks stop` where the job goes on, else Slurm's own end: then KILL_WAIT is all that is left.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from allranks.agent.processes import command_of
from allranks.cluster.slurm_allocation import Allocation
from allranks.diagnose.slurm_jobs import (
    LIMIT,
    Advice,
    Origin,
    SlurmJob,
    cancelled,
    ended,
    failed_node,
    out_of_memory,
    script_ended,
    time_given,
    warned,
)
from allranks.errors import NodeError, UsageError
from allranks.findings import Finding
from allranks.gang.transport import NodeReach, TimeLeft, Transport
from allranks.plan.render.slurm import run_suffix, warning
from allranks.plan.slurm_commands import WARNING_SIGNAL
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document
from allranks.runs.regular import read_end

from . import jobs

MARGIN = 2.0  # seconds before Slurm's SIGKILL in which the result is written
LOG_TAIL = 8 << 10
LINGER = 3600.0  # seconds, the longest GraceTime that is waited for
LOOK_EVERY = 5.0


def advice_for(allocation: Allocation, stop_grace: float) -> Advice:
    """Return what the owner of a job can change, in the words of how it was started."""
    origin = Origin.SCRIPT if allocation.batch else Origin.SHELL
    return Advice(Origin.ALLRANKS if allocation.made_by_allranks else origin, warning(stop_grace))


class Inside(NodeReach):
    """How nodes are reached that Slurm may take back: at the time limit, by a preemption, by scancel.

    `warned_t` is when Slurm announced the end.
    """

    warning_signal = getattr(signal, f"SIG{WARNING_SIGNAL}")

    def __init__(self, transport: Transport, allocation: Allocation, stop_grace: float = 30.0) -> None:
        super().__init__(transport)
        self.allocation = allocation
        self.run_suffix = run_suffix(allocation.job)
        self.warned_t: float | None = None
        self._stop_grace = stop_grace
        self._advice = advice_for(allocation, stop_grace)
        self._began = time.strftime("%Y-%m-%dT%H:%M:%S")  # as slurmstepd writes it

    def printed(self) -> str:
        """Return what our steps have printed."""
        return ""

    def step_end(self) -> Finding | None:
        """Return why a step ended before the run did."""
        return None

    @property
    def document(self) -> Document:
        """Return where the run is, as run.json's `slurm` has it."""
        job = self.allocation
        return {"job": job.job, "batch": job.batch, "restarts": job.restarts, "nodes": list(job.nodes)}

    def run_directory(self, runs_dir: str) -> RunDirectory | None:
        """Return the run directory of who submitted this job, or of its start before a requeue; else None."""
        named = super().run_directory(runs_dir)
        if named is not None or not self.allocation.restarts:
            return named
        before = [run for run in RunDirectory.list_runs(Path(runs_dir)) if run.job == self.allocation.job]
        return before[-1] if before else None

    def announce(self, run: RunDirectory) -> None:
        """Say in the job's comment where the run directory is; in a thread, as slurmctld may take its time."""
        words = (self.allocation.job, str(run.path.absolute()))
        threading.Thread(target=jobs.set_comment, args=words, name="comment", daemon=True).start()

    def remarks(self) -> list[str]:
        """Say where Slurm gives ranks less time than asked for."""
        wait = jobs.kill_wait()
        if wait is None or self._stop_grace <= wait - MARGIN:
            return []
        seconds = f"ranks {wait} s to save (Slurm's KillWait), not the {self._stop_grace:g} s of --stop-grace"
        if self._advice.origin is Origin.ALLRANKS:
            return [f"scancel leaves {seconds}. `allranks stop` gives them all of it"]
        return [f"scancel, and a time limit without --signal, leave {seconds}. {self._advice.warning}"]

    def warned(self) -> None:
        """Note that Slurm has announced the end."""
        self.warned_t = time.time()

    def linger(self, cause: str) -> None:
        """Stay after the orderly end before a preemption.

        Slurm puts back into the queue only a job that still runs when the GraceTime is over, and ends this process
        then (SIGTERM).
        """
        if cause != LIMIT or not self.allocation.batch:
            return
        began = time.monotonic()
        while time.monotonic() - began < LINGER:
            job = self._look()
            if job is None or job.state != "RUNNING" or not (job.preempted and job.requeues):
                return
            time.sleep(LOOK_EVERY)

    def time_left(self) -> TimeLeft | None:
        """Return how long ranks have where Slurm is ending the job, or soon will; None where it may go on."""
        job = self._look()
        given = time_given(job, time.time(), jobs.kill_wait() or 0) if job is not None else None
        if given is None:
            return None
        return TimeLeft(max(0.0, given.seconds - MARGIN), f"Slurm's {given.source}")

    def finding(self, is_stopped: bool) -> Finding | None:
        """Return Slurm's own reason for the end of the ranks; None where it has none."""
        job = self._look()
        finding = self._of_the_job(job, is_stopped) if job is not None else None
        return finding or self.step_end()

    def _of_the_job(self, job: SlurmJob, stopped: bool) -> Finding | None:
        """Find Slurm's reason. srun and slurmstepd know it better than slurmctld, whose state is COMPLETING."""
        advice = self._advice
        printed = self.printed()
        if self.warned_t is not None:
            return warned(job, self.warned_t, advice)
        if job.state == "RUNNING" and job.preempted and stopped:
            return warned(job, time.time(), advice)
        node, line = failed_node(printed, dict.fromkeys(self.allocation.nodes, 0))
        if node:
            return ended(job.reported("NODE_FAIL", node), line=line, advice=advice)
        if job.state == "RUNNING" and out_of_memory(printed):
            return ended(job.reported("OUT_OF_MEMORY"), line=out_of_memory(printed), advice=advice)
        state, line = cancelled(printed) or cancelled(_end_of(job.stdout), self._began) or ("CANCELLED", "")
        if state != "CANCELLED":
            job = job.reported(state)
        elif job.state in ("RUNNING", "PENDING"):
            return None
        elif job.state in ("COMPLETING", "COMPLETED", "FAILED") and job.restarts > self.allocation.restarts:
            job = job.reported("REQUEUED")
        elif job.state in ("COMPLETING", "COMPLETED", "FAILED"):
            # This process may have taken the place of the script (exec).
            is_below_one = self.allocation.batch and not command_of(os.getppid()).startswith("slurmstepd")
            own_end = script_ended(job, line) if is_below_one else None
            if own_end is not None or not stopped:
                return own_end
            job = job.reported(state)
        return ended(job, jobs.kill_wait(), line, advice)

    def _look(self) -> SlurmJob | None:
        try:
            return jobs.look(self.allocation.job)
        except (NodeError, UsageError):
            return None


def _end_of(output: str) -> str:
    """Read the end of the job's own output: slurmstepd writes there why it ends the batch script."""
    try:
        return read_end(Path(output), LOG_TAIL).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
