"""SkyPilot as an engine: machines of a cloud that run `allranks join`, driven and followed through `sky`."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

from allranks.engines.remote import RemoteEngine, read_place
from allranks.plan.environment import forwarded
from allranks.plan.render.pod_spec import ARCHIVE
from allranks.plan.render.skypilot import SECRET, hidden_names, sky_task
from allranks.plan.render.yamltext import yaml_text
from allranks.protocol.codec import document_line
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document
from allranks.runs.opening import take_control
from allranks.runs.regular import replacing
from allranks.runs.result import write_result
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved

from .. import zipapp
from ..following import show_opening
from ..remote import create_run, hidden_values, name_of
from .following import ClusterOfRun, SkyFollower, call, launch_argv, log_argv, require, without_result


class SkyPilot(RemoteEngine):
    """The clouds that `sky` can reach."""

    name = "skypilot"

    def prepare(self, resolved: Resolved) -> TaskLaunch:
        """Return the task that a start would launch."""
        return TaskLaunch(resolved.spec)

    def follow(self, run: RunDirectory, view: View) -> SkyFollower:
        """Follow the newest job's log from its beginning, for which the directory's own logs start again."""
        require()
        place = read_place(run, ClusterOfRun)
        take_control(run)
        for path in (run.path / "logs").glob("**/rank_*.log*"):
            path.unlink()
        return SkyFollower(run, place, view, log_argv(place.name), os.environ)

    def whereabouts(self, run: RunDirectory) -> str:
        """Return the cluster's line of `sky status`."""
        return _cluster_line(read_place(run, ClusterOfRun)) or "no such cluster"

    def settle(self, run: RunDirectory) -> None:
        """Write the end of a run whose machines have been removed."""
        place = read_place(run, ClusterOfRun)
        if not _cluster_line(place):
            message = f"the machines of {place.name} were taken down before its result was read"
            write_result(run, without_result(run, message), stopped=False)


def _cluster_line(place: ClusterOfRun) -> str:
    """Return the cluster's line of `sky status`; empty where the cluster does not exist."""
    for line in call("status", place.name).splitlines():
        if line.startswith(place.name):
            return " ".join(line.split())
    return ""


ENGINE = SkyPilot()


TASK = "task.yaml"


class TaskPlan(NamedTuple):
    """What `run --sky --dry-run --json` prints: a command, and the task that it would be given."""

    command: Sequence[str]
    task: Document


class TaskLaunch:
    """One task and its `sky launch`; allranks itself lies beside the task in the run directory."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._now = time.time()
        self._name = name_of(spec, self._now)
        self._variables = forwarded(dict(os.environ), ())
        self._hidden = hidden_names(spec, self._variables)

    def describe(self, as_json: bool) -> str:
        """Return the task, and the command that takes it."""
        task = self._task(f"./{ARCHIVE}")
        argv = launch_argv(self._name, TASK, self._hidden)
        if as_json:
            return document_line(TaskPlan(argv, task))
        return yaml_text([task], [f"would call `{' '.join(argv)}` with this, and nothing was done"]).rstrip("\n")

    def start(self, view: View) -> SkyFollower:
        """Write the task into a run directory and call `sky launch`."""
        require()
        spec = self._spec
        place = ClusterOfRun("skypilot", self._name, spec.cloud.autostop, spec.limits.stop_grace)
        nodes = [f"node{i}" for i in range(spec.target.nodes or 1)]
        run = create_run(spec, self._name, place, nodes, self._now)
        archive = (run.path / ARCHIVE).absolute()
        with replacing(archive) as file:
            file.write(zipapp.build())
        task = (run.path / TASK).absolute()
        with replacing(task) as file:
            file.write(yaml_text([self._task(str(archive))]).encode())
        argv = launch_argv(self._name, str(task), self._hidden)
        show_opening(run, view)
        return SkyFollower(run, place, view, argv, {**os.environ, **self.hidden_environment()})

    def _task(self, archive: str) -> Document:
        return sky_task(self._spec, self._name, archive, os.getcwd(), True, self._variables)

    def hidden_environment(self) -> dict[str, str]:
        """Return what must not stand in the arguments of `sky launch`: it reads them from its environment."""
        hidden = hidden_values(self._spec, self._variables, self._hidden, os.environ)
        return {**hidden, SECRET: secrets.token_hex(32)}
