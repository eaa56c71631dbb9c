"""run --sky: the task of a cluster of its own for the run, as `sky launch` gets it (IO)."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

from allranks.engines import zipapp
from allranks.engines.following import FollowerView
from allranks.engines.remote import create_run, hidden_values, name_of, show_opening
from allranks.plan.environment import forwarded
from allranks.plan.render.pod_spec import ARCHIVE
from allranks.plan.render.skypilot import SECRET, hidden_names, sky_task
from allranks.plan.render.yamltext import yaml_text
from allranks.protocol.codec import document_line
from allranks.runs.documents import Document
from allranks.runs.regular import replacing
from allranks.settings import RunSpec

from .following import ClusterOfRun, SkyFollower, launch_argv, require

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

    def start(self, view: FollowerView) -> SkyFollower:
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
        show_opening(run, view, spec)
        return SkyFollower(run, place, view, argv, {**os.environ, **self.hidden_environment()})

    def _task(self, archive: str) -> Document:
        return sky_task(self._spec, self._name, archive, os.getcwd(), True, self._variables)

    def hidden_environment(self) -> dict[str, str]:
        """Return what must not stand in the arguments of `sky launch`: it reads them from its environment."""
        hidden = hidden_values(self._spec, self._variables, self._hidden, os.environ)
        return {**hidden, SECRET: secrets.token_hex(32)}
