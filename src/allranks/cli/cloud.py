"""run --sky: a cluster of its own for the run, followed through `sky`, taken down at the end."""

from __future__ import annotations

import json
import os
import secrets
import time
from typing import Any

import click

from allranks.engines import zipapp
from allranks.engines.skypilot.following import SkyRun, call, environment, launch_argv, log_argv, require
from allranks.errors import NodeError
from allranks.exitcodes import DONE
from allranks.plan.environment import forwarded
from allranks.plan.render.pods import ARCHIVE
from allranks.plan.render.skypilot import SECRET, hidden_names, sky_task
from allranks.plan.render.yamltext import yaml_text
from allranks.report.live import JsonView, View
from allranks.runs.directory import RunDirectory
from allranks.settings import RunSpec

Document = dict[str, Any]
TASK = "task.yaml"


def run_sky(spec: RunSpec, json_: bool, dry_run: bool) -> int:
    """Launches and follows; gives the exit code."""
    from .afar import create_run, name_of, watch

    if not dry_run:
        require()
    now = time.time()
    name = name_of(spec, now)
    variables = forwarded(dict(os.environ), ())
    hidden = hidden_names(spec, variables)
    if dry_run:
        task = sky_task(spec, name, f"./{ARCHIVE}", os.getcwd(), True, variables)
        click.echo(described(task, launch_argv(name, TASK, hidden), json_))
        return DONE
    where = {"engine": "skypilot", "name": name, "autostop": spec.cloud.autostop, "grace": spec.limits.stop_grace}
    run = create_run(spec, where, [f"node{i}" for i in range(spec.target.nodes or 1)], now)
    task = sky_task(spec, name, str((run.path / ARCHIVE).absolute()), os.getcwd(), True, variables)
    task_file = write_task(run, task)
    values = {**variables, **spec.launch.env, **{n: os.environ[n] for n in spec.launch.forward if n in os.environ}}
    given = {n: values[n] for n in hidden if n in values} | {SECRET: secrets.token_hex(32)}
    argv = launch_argv(name, task_file, hidden)
    return watch(run, spec, lambda view: SkyRun(run, where, view).start(argv, environment(given)), json_)


def write_task(run: RunDirectory, task: Document) -> str:
    """The task and the zipapp beside it, in the run directory."""
    path = (run.path / TASK).absolute()
    path.write_text(yaml_text([task]))
    (run.path / ARCHIVE).write_bytes(zipapp.build())
    return str(path)


def described(task: Document, argv: list[str], json_: bool) -> str:
    """--dry-run."""
    if json_:
        return json.dumps({"schema": 1, "command": argv, "task": task})
    return yaml_text([task], [f"would call `{' '.join(argv)}` with this; nothing was done"]).rstrip("\n")


def adopt_sky(run: RunDirectory, where: Document, view: View | JsonView) -> SkyRun:
    """Follows again; the log comes from its beginning, so that the directory's own logs start anew."""
    for path in (run.path / "logs").glob("**/rank_*.log*"):
        path.unlink()
    return SkyRun(run, where, view).start(log_argv(str(where["name"])), os.environ)


def look_sky(where: Document) -> str:
    """What SkyPilot says of the cluster, in a line."""
    try:
        lines = call("status", str(where["name"])).splitlines()
    except NodeError as error:
        return str(error)
    return next((" ".join(line.split()) for line in lines if line.startswith(str(where["name"]))), "no such cluster")
