"""Slurm as an engine (IO). Inside an allocation this process controls the run, as on named hosts.

Outside of one a job is submitted, and its first node has the controller.
"""

from __future__ import annotations

import dataclasses
import os
import time
from contextlib import suppress

from allranks.cluster.slurm_allocation import read_allocation
from allranks.diagnose.slurm_jobs import nearly_over, seconds_since_end, waiting
from allranks.engines import PreparedLaunch, Stopped, engine_named
from allranks.engines.following import FollowerView
from allranks.errors import AllranksError, NodeError, UsageError
from allranks.plan.slurm_commands import apptainer_command
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved

from . import jobs
from .ended import LATE, conclude, has_begun
from .following import JobFollower, end_job
from .submitting import Submission

PAUSE = 0.2
LOOK_EVERY = 1.0  # seconds between two questions to slurmctld
BEYOND = 60.0  # seconds beyond the grace after which Slurm is asked to end the job itself


def in_container(spec: RunSpec) -> RunSpec:
    """Return the spec whose ranks apptainer starts, where an image was asked for and srun starts no containers.

    The interpreter is then the image's own.
    """
    if spec.launch.container_image is None or jobs.has_pyxis():
        return spec
    return spec.changed(wrap=apptainer_command(spec, os.getcwd()), python=spec.launch.python or "python3")


class Slurm:
    """Jobs of the cluster whose commands are on PATH."""

    def prepare(self, resolved: Resolved) -> PreparedLaunch:
        """Return the launch in our allocation, else the job that a start would submit."""
        if read_allocation(os.environ) is not None:
            return engine_named("ssh").prepare(dataclasses.replace(resolved, spec=in_container(resolved.spec)))
        return Submission(resolved.spec)

    def lives(self, run: RunDirectory) -> bool:
        """Return whether the job goes on, or slurmctld does not answer."""
        try:
            job = jobs.look(_job_of(run))
        except NodeError:
            return True
        except UsageError:
            return False  # no Slurm here
        return job is not None and not job.over

    def condition(self, run: RunDirectory, state: str) -> Document:
        """Return what Slurm says of the job that has the controller."""
        number = _job_of(run)
        try:
            job = jobs.look(number)
        except AllranksError as error:
            return {"job": {"id": number, "state": "unknown", "why": str(error)}}
        if job is None:
            return {"job": {"id": number, "state": "gone", "why": "Slurm does not remember it"}}
        why = waiting(job) if job.waits else nearly_over(job, time.time())
        return {"job": {"id": number, "state": job.state, "why": why}}

    def follow(self, run: RunDirectory, view: FollowerView) -> JobFollower:
        """Follow a job that was submitted before, or whose controller is on another host."""
        return JobFollower(run, _job_of(run), view, run.read_lines()[1])

    def stop(self, run: RunDirectory, grace: float, view: FollowerView) -> Stopped:
        """End the job through its controller, else through Slurm, and wait until the run is over.

        Raise SlurmError where slurmctld does not answer at first; later it is asked again.
        """
        number = _job_of(run)
        end_job(number, orderly=grace > 0)
        began = time.monotonic()
        asked = began
        is_cancelled = False
        while not run.has_ended:
            if time.monotonic() - asked > LOOK_EVERY:
                asked = time.monotonic()
                with suppress(jobs.SlurmError):
                    job = jobs.look(number)
                    if job is None or job.over:
                        conclude(run, job, stopped=True)
                        break
                    if asked - began > grace + BEYOND and not is_cancelled:
                        jobs.cancel(number)
                        is_cancelled = True
            time.sleep(PAUSE)
        return Stopped("slurm", shows_end=False, job=number)

    def stop_notice(self, run: RunDirectory, grace: float) -> str:
        """Return the sentence that `stop` begins with. A job that waits has no ranks."""
        if not has_begun(run) and _waits(_job_of(run)):
            return f"removing {run.name} from the queue: job {run.job} had not started"
        return f"stopping {run.name} in job {run.job}: ranks have {grace:g} s to save"

    def finish(self, run: RunDirectory, now: float) -> None:
        """Write the end of a run whose job is over. A controller that had begun gets a moment to do it itself."""
        try:
            job = jobs.look(_job_of(run))
        except (NodeError, UsageError):
            return
        if job is not None and not job.over:
            return
        ended_before = seconds_since_end(job, now) if job is not None else None
        if ended_before is not None and ended_before < LATE and has_begun(run):
            return
        conclude(run, job)


def _waits(number: str) -> bool:
    """Whether a job is in the queue; False where slurmctld does not answer."""
    try:
        job = jobs.look(number)
    except jobs.SlurmError:
        return False
    return job is not None and job.waits


def _job_of(run: RunDirectory) -> str:
    assert run.job is not None  # `engine_of` has seen to it
    return run.job


ENGINE = Slurm()
