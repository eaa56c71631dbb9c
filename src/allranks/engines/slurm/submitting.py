"""run --slurm outside of an allocation: submit a job whose first node has the controller (IO)."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from allranks.cluster import Cluster, Node
from allranks.engines.following import FollowerView
from allranks.errors import AllranksError
from allranks.plan.plan import make_plan
from allranks.plan.render import RenderRequest
from allranks.plan.render.slurm import batch_script, run_suffix
from allranks.protocol.codec import document_line
from allranks.protocol.run_facts import NodesAsked, Stamped
from allranks.runs.directory import RunDirectory
from allranks.runs.opening import Opening, write_first_status, write_opening
from allranks.settings import RunSpec
from allranks.settings.command_line import secret_values
from allranks.settings.secrets import redact_text
from allranks.unpacked import own_command

from . import jobs
from .ended import OUTPUT
from .following import JobFollower


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
        nodes = tuple(Node(i, f"node{i}", f"node{i}") for i in range(self._spec.target.nodes or 1))
        plan = make_plan(self._spec, Cluster(nodes, "--nodes"), {})
        request = RenderRequest(self._spec, plan, os.getcwd(), allranks=own_command())
        return batch_script(request, run_dir)

    def describe(self, as_json: bool) -> str:
        """Return the script and the command that takes it, without secrets."""
        script = redact_text(self.script(f"{self._runs_dir}/{self._spec.places.name}-<time>"))
        if as_json:
            return document_line(SubmissionPlan(jobs.SBATCH, script))
        command = " ".join(jobs.SBATCH)
        return f"would give this script to `{command}` on its standard input, and nothing was done\n\n{script}"

    def start(self, view: FollowerView) -> JobFollower:
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
        opening = Opening(self._spec, "", (), "Slurm", os.getcwd(), time.time(), controller=None, name=named.name)
        write_opening(run, opening)
        write_first_status(run, "queued", name=named.name)
        run.append(Stamped("", opening.started, None, NodesAsked("Slurm")))
        run.write_document("job.json", {"job": job, "submitted_from": socket.gethostname()})
        (run.path / OUTPUT).symlink_to(os.path.join(os.getcwd(), f"slurm-{job}.out"))
        os.rename(run.path, named.path)
        return named
