"""Slurm as an engine (IO). Inside an allocation this process controls the run, as on named hosts.

Outside of one a job is submitted, and its first node has the controller.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from allranks.cluster.slurm_allocation import read_allocation
from allranks.diagnose.slurm_jobs import nearly_over, seconds_since_end, waiting
from allranks.engines import PreparedLaunch, Stopped, engine_named
from allranks.errors import AllranksError, NodeError, UsageError
from allranks.plan.ranks import Plan
from allranks.plan.render import RenderRequest
from allranks.plan.render.slurm import batch_script, run_suffix
from allranks.plan.slurm_commands import apptainer_command
from allranks.protocol.codec import document_line
from allranks.protocol.run_facts import NodesAsked, Stamped
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document, RunDocument
from allranks.runs.opening import write_first_status, write_opening
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.command_line import secret_values
from allranks.settings.layers import Resolved
from allranks.settings.secrets import redact_text
from allranks.unpacked import own_command

from . import jobs
from .ended import LATE, OUTPUT, conclude, has_begun
from .following import JobFollower, end_job

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

    def follow(self, run: RunDirectory, view: View) -> JobFollower:
        """Follow a job that was submitted before, or whose controller is on another host."""
        return JobFollower(run, _job_of(run), view, run.read_lines()[1])

    def stop(self, run: RunDirectory, grace: float, view: View) -> Stopped:
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
        return Stopped(run.name, "slurm", job=number)

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


class SubmissionPlan(NamedTuple):
    """What `run --slurm --dry-run --json` prints outside of an allocation: a command, and its standard input."""

    command: Sequence[str]
    stdin: str


class Submission:
    """A batch script for `sbatch`, and the run directory that its controller will find."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._runs_dir = os.path.abspath(spec.places.runs_dir)

    def script(self, run_dir: str) -> str:
        """Return the script. It asks for as many nodes as the run has, without names."""
        request = RenderRequest(self._spec, Plan(()), os.getcwd(), allranks=own_command())
        return batch_script(request, run_dir)

    def describe(self, as_json: bool) -> str:
        """Return the script and the command that takes it, without secrets."""
        script = redact_text(self.script(f"{self._runs_dir}/{self._spec.places.name}-<time>"))
        if as_json:
            return document_line(SubmissionPlan(jobs.SBATCH, script))
        command = " ".join(jobs.SBATCH)
        return f"would give this script to `{command}` on its standard input, and nothing was done\n\n{script}"

    def start(self, view: View) -> JobFollower:
        """Submit it. Raise SlurmError, and leave no run directory, where Slurm refuses the job."""
        jobs.require()
        run = RunDirectory.create(Path(self._runs_dir), self._spec.places.name, time.time())
        (run.path / "outputs").mkdir(mode=0o700, exist_ok=True)
        try:
            environ = {**os.environ, **secret_values(self._spec)}
            job = jobs.submit(self.script(str(run.path)), environ, os.getcwd())
        except AllranksError:
            shutil.rmtree(run.path)  # nothing has happened in it
            raise
        run = self._name_after(run, job)
        jobs.set_comment(job, str(run.path))
        return JobFollower(run, job, view, first_words=f"submitted, its run directory is {run.path}")

    def _name_after(self, run: RunDirectory, job: str) -> RunDirectory:
        """Give the run directory the job's number. It is complete when the job sees it under that name."""
        named = RunDirectory(run.path.with_name(run.name + run_suffix(job)))
        now = time.time()
        write_opening(run, self._spec, RunDocument(named.name, started=now, source="Slurm", workdir=os.getcwd()))
        write_first_status(run, "queued", name=named.name)
        run.append(Stamped("", now, None, NodesAsked("Slurm")))
        run.write_document("job.json", {"job": job, "submitted_from": socket.gethostname()})
        (run.path / OUTPUT).symlink_to(os.path.join(os.getcwd(), f"slurm-{job}.out"))
        os.rename(run.path, named.path)
        return named
