"""The Slurm job that this controller runs in: its earlier start, how it wants us to end, what it says of the end (IO).

Slurm tells a batch script before the time limit or a preemption by the signal that we asked for (SIGXCPU). SIGTERM is
`allranks stop` where the job goes on, else Slurm's own end: then KILL_WAIT is all that is left.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from allranks.agent.processes import command_of
from allranks.cluster.slurm_allocation import MADE_BY_ALLRANKS, Allocation, read_allocation
from allranks.diagnose.slurm_jobs import (
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
from allranks.gang.transport import TimeLeft
from allranks.plan.render.slurm import run_suffix, warning
from allranks.plan.slurm_commands import WARNING_SIGNAL, asks_for_signal
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document
from allranks.runs.regular import read_end

from . import jobs

MARGIN = 2.0  # seconds before Slurm's SIGKILL in which the result is written
LOG_TAIL = 8 << 10
LINGER = 3600.0  # seconds, the longest GraceTime that is waited for
LOOK_EVERY = 5.0


@dataclass
class Inside:
    """One controller's job. `warned_t` is when Slurm announced the end; `printed` gives what our step has printed,
    `step_end` why it ended before the run did."""

    SIGNAL: ClassVar[int] = getattr(signal, f"SIG{WARNING_SIGNAL}")

    allocation: Allocation
    warned_t: float | None = None
    printed: Callable[[], str] = str
    step_end: Callable[[], Finding | None] = lambda: None
    stop_grace: float = 30.0

    @property
    def document(self) -> Document:
        """Where the run is, as run.json's `slurm` has it."""
        job = self.allocation
        return {"job": job.job, "batch": job.batch, "restarts": job.restarts, "nodes": list(job.nodes)}

    def run_directory(self, runs_dir: str) -> RunDirectory | None:
        """Return the run directory of who submitted this job, or of its start before a requeue; else None."""
        named = os.environ.pop("ALLRANKS_RUN_DIR", None)
        if named:
            return RunDirectory(Path(named))
        if not self.allocation.restarts:
            return None
        before = [run for run in RunDirectory.list_runs(Path(runs_dir)) if run.job == self.allocation.job]
        if not before:
            return None
        return before[-1]

    @property
    def run_suffix(self) -> str:
        """What a run directory that is made here has behind its name."""
        return run_suffix(self.allocation.job)

    def announce(self, run: RunDirectory) -> None:
        """Say in the job's comment where the run directory is; in a thread, as slurmctld may take its time."""
        words = (self.allocation.job, str(run.path.absolute()))
        threading.Thread(target=jobs.set_comment, args=words, name="comment", daemon=True).start()

    @property
    def advice(self) -> Advice:
        """What the owner of this job can change, in the words of how it was started."""
        origin = Origin.SCRIPT if self.allocation.batch else Origin.SHELL
        return Advice(Origin.ALLRANKS if self.allocation.made_by_allranks else origin, warning(self.stop_grace))

    def remarks(self) -> list[str]:
        """Say where Slurm gives ranks less time than asked for."""
        wait = jobs.kill_wait()
        if wait is None or self.stop_grace <= wait - MARGIN:
            return []
        seconds = f"ranks {wait} s to save (Slurm's KillWait), not the {self.stop_grace:g} s of --stop-grace"
        short = f"leaves {seconds}"
        both = f"scancel and the time limit leave {seconds}"
        origin = self.advice.origin
        if origin is Origin.ALLRANKS:
            return [f"scancel {short}. `allranks stop` gives them all of it"]
        if origin is Origin.SCRIPT and asks_for_signal(jobs.batch_script(self.allocation.job), os.environ):
            return [f"scancel {short}. `allranks stop` gives them all of it"]
        if origin is Origin.SCRIPT:
            return [f"{both}. {self.advice.warning}"]
        return [f"{both}. With `salloc --signal=USR1@60` ranks get SIGUSR1 before the limit"]

    def warning(self) -> None:
        """Note that Slurm has announced the end."""
        self.warned_t = time.time()

    def linger(self) -> None:
        """Stay after the orderly end before a preemption.

        Slurm puts back into the queue only a job that still runs when the GraceTime is over, and ends this process
        then (SIGTERM).
        """
        if not self.allocation.batch:
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

    def finding(self, stopped: bool) -> Finding | None:
        """Return Slurm's own reason for the end of the ranks; None where it has none."""
        job = self._look()
        finding = self._of_the_job(job, stopped) if job is not None else None
        return finding or self.step_end()

    def _of_the_job(self, job: SlurmJob, stopped: bool) -> Finding | None:
        """Find Slurm's reason. srun and slurmstepd know it better than slurmctld, whose state is COMPLETING."""
        advice = self.advice
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
        end_state = cancelled(printed) or cancelled(_end_of(job.stdout)) or ("CANCELLED", "")
        if end_state[0] != "CANCELLED":
            return ended(job.reported(end_state[0]), jobs.kill_wait(), end_state[1], advice)
        if job.state in ("RUNNING", "PENDING"):
            return None
        if job.state not in ("COMPLETING", "COMPLETED", "FAILED"):
            return ended(job, jobs.kill_wait(), end_state[1], advice)
        if job.restarts > self.allocation.restarts:
            return ended(job.reported("REQUEUED"), jobs.kill_wait(), end_state[1], advice)
        own_end = script_ended(job, end_state[1]) if self._below_the_script() else None
        if own_end is None and stopped:
            return ended(job.reported("CANCELLED"), jobs.kill_wait(), end_state[1], advice)
        return own_end

    def _below_the_script(self) -> bool:
        """Tell whether a batch script is above us; False where this process has taken its place (exec)."""
        if not self.allocation.batch:
            return False
        return not command_of(os.getppid()).startswith("slurmstepd")

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


def inside(environ: MutableMapping[str, str], stop_grace: float) -> Inside | None:
    """Return the job that we are in; None outside of one. Ranks do not see whose script it is."""
    allocation = read_allocation(environ)
    environ.pop(MADE_BY_ALLRANKS, None)
    if allocation is None:
        return None
    return Inside(allocation, stop_grace=stop_grace)
