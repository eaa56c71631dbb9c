"""Ending a run that a Slurm job controls: through its controller, else through Slurm."""

from __future__ import annotations

import time
from typing import Any

import click

from allranks.engines.slurm import jobs
from allranks.runs.concluded import conclude
from allranks.runs.directory import RunDirectory

PAUSE = 0.2
LOOK_EVERY = 1.0  # seconds between two questions to slurmctld
BEYOND = 60.0  # seconds beyond the grace after which Slurm is asked to end the job itself


def end_job(job: str, orderly: bool) -> None:
    """A job that waits is cancelled; in one that runs the controller is told, or with not `orderly` all is ended."""
    found = jobs.look(job)
    if found is None or found.over:
        return
    if found.waits or not orderly:
        jobs.cancel(job)
    else:
        jobs.tell(job)


def stop_job(run: RunDirectory, job: str, grace: float, json_: bool) -> dict[str, Any]:
    """The `stop` verb for it: waits until the run is over."""
    if not json_:
        click.echo(f"stopping {run.name} in job {job}: ranks have {grace:g} s to save")
    end_job(job, grace > 0)
    began = time.monotonic()
    hurried = False
    asked = began
    while run.read_document("result.json") is None:
        if time.monotonic() - asked > LOOK_EVERY:
            found = jobs.look(job)
            asked = time.monotonic()
            if found is None or found.over:
                conclude(run, found, stopped=True)
                break
        if time.monotonic() - began > grace + BEYOND and not hurried:
            hurried = True
            jobs.cancel(job)
        time.sleep(PAUSE)
    left = (run.read_document("result.json") or {}).get("left")
    if not json_:
        click.echo(f"{run.name} has ended; nothing of it is left" if not left else f"left: {left}")
    return {"run": run.name, "how": "slurm", "job": job, "code": 4 if left else 0}
