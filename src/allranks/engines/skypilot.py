"""SkyPilot as an engine: machines of a cloud that run `allranks join`, driven and followed through `sky`."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from shutil import which
from typing import NamedTuple, Optional

from allranks.errors import NodeError, UsageError
from allranks.exitcodes import NODE_FAILED, TERMINATED
from allranks.findings import Finding, Verdict
from allranks.plan.environment import forwarded
from allranks.plan.joining import SECRET
from allranks.plan.render.pod_spec import ARCHIVE
from allranks.plan.render.skypilot import hidden_names, sky_task
from allranks.plan.render.yamltext import yaml_text
from allranks.protocol.codec import document_line
from allranks.protocol.processes import RemainingProcess
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document, Left, ResultDocument
from allranks.runs.opening import take_control
from allranks.runs.regular import append, replacing
from allranks.runs.result import least_result, write_result
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved

from . import zipapp
from .following import show_opening
from .program_lines import ProcessLines
from .remote import RemoteEngine, RemoteRun, create_run, hidden_values, name_of, read_place

# -- A run on SkyPilot's machines, from here ---------------------------------------------------------------------------

LOG = "sky.log"
PATIENCE = 300.0  # seconds for one call of sky
ENDING = 20.0  # beyond the ranks' grace, before the machines are taken down
_PREFIX = re.compile(r"^(?:\x1b\[[0-9;]*m)*\([^()]*\)(?:\s|\x1b\[[0-9;]*m)*")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def require() -> None:
    """Raise UsageError where sky is not on PATH."""
    if which("sky") is None:
        raise UsageError("--sky needs SkyPilot's `sky` on PATH. `allranks render skypilot` writes the task without it")


def call(*words: str) -> str:
    """Call sky and return what it prints; raise NodeError with its last words."""
    try:
        done = subprocess.run(
            ["sky", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise NodeError(f"sky {words[0]}: no answer in {PATIENCE:g} s") from None
    except OSError as error:
        raise NodeError(f"sky: {error.strerror}") from None
    text = _COLOUR.sub("", str(done.stdout))
    if done.returncode:
        raise NodeError(f"sky {words[0]}: {' '.join(text.split())[-400:]}")
    return text


class ClusterOfRun(NamedTuple):
    """Where a run is, as run.json's `engine` has it. `autostop`, `grace`: seconds."""

    engine: str
    name: str
    autostop: Optional[float] = None  # noqa: UP045  (the codec reads these annotations on Python 3.8, too)
    grace: float = 30.0


class SkyFollower(RemoteRun):
    """The cluster of one run, followed through the output of `argv`: `sky launch`, or `sky logs` for one that runs."""

    def __init__(
        self,
        run: RunDirectory,
        place: ClusterOfRun,
        view: View,
        argv: Sequence[str],
        environ: Mapping[str, str],
    ) -> None:
        super().__init__(run, view, place.engine, place.name)
        self._place = place
        self._sky = ProcessLines(argv, environ, subprocess.STDOUT)
        self._last_lines: list[str] = []
        self._stopped_at = 0.0

    def turn(self) -> ResultDocument | None:
        """Show what is new; return the result once the run is over."""
        for line in self._sky.take():
            self._line(line)
        if self.replay.result is not None:
            return self.replay.result
        is_late = self.stopping and time.monotonic() - self._stopped_at > self._place.grace + ENDING
        if not self._sky.over and not is_late:
            return None
        if self.stopping:
            return least_result(self.run, TERMINATED, None)
        message = f"sky ended (exit code {self._sky.code}) and node 0 gave no result"
        return without_result(self.run, message, self._last_lines[-5:])

    def _line(self, line: str) -> None:
        text = _PREFIX.sub("", line, count=1)
        if text.lstrip().startswith("{"):
            self.replay.line(text.strip())
            return
        clean = _COLOUR.sub("", line).rstrip()
        if clean.strip():
            self._last_lines = [*self._last_lines, clean.strip()[:300]][-20:]
            with contextlib.suppress(OSError):  # on a full disk the last lines are evidence enough
                append(self.run.path / LOG, clean.encode("utf-8", "backslashreplace") + b"\n")

    def stop(self) -> None:
        """End the run. Once: the job is cancelled, which lets ranks save. Twice: the machines go now."""
        if self.stopping:
            self._stopped_at = 0.0
            self.say("ending at once")
            return
        self.stopping = True
        self._stopped_at = time.monotonic()
        self.say("cancelling the job")
        try:
            call("cancel", "--all", "--yes", self.name)
        except NodeError as error:
            self.say(str(error))
            self._stopped_at = 0.0

    def remove(self) -> Left:
        """Take the machines down, unless --autostop keeps them for a while."""
        if self._place.autostop and not self.stopping:
            return {}
        try:
            call("down", "--yes", self.name)
        except NodeError as error:
            return {self.name: (RemainingProcess(0, "?", str(error)),)}
        return {}

    def hang_up(self) -> None:
        """End what reads node 0's lines."""
        self._sky.end()


def without_result(run: RunDirectory, message: str, evidence: Sequence[str] = ()) -> ResultDocument:
    """Return the result of a run of which node 0 has sent none."""
    finding = Finding("unknown", "fail", message, f"see {run.path}/{LOG}", evidence=tuple(evidence), check="skypilot")
    return least_result(run, NODE_FAILED, Verdict(finding, "unknown", 0.4))


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
        return SkyFollower(run, place, view, ["sky", "logs", place.name], os.environ)

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
        self._variables = forwarded(os.environ, ())
        self._hidden = hidden_names(spec, self._variables)

    def describe(self, as_json: bool) -> str:
        """Return the task, and the command that takes it."""
        task = self._task(f"./{ARCHIVE}")
        argv = self._argv(TASK)
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
        argv = self._argv(str(task))
        show_opening(run, view)
        return SkyFollower(run, place, view, argv, {**os.environ, **self.hidden_environment()})

    def _argv(self, task: str) -> list[str]:
        """Return the words of `sky launch`; values of secrets come from its environment."""
        options = [word for secret in self._hidden for word in ("--secret", secret)]
        return ["sky", "launch", "--cluster", self._name, "--yes", *options, task]

    def _task(self, archive: str) -> Document:
        return sky_task(self._spec, self._name, archive, os.getcwd(), True, self._variables)

    def hidden_environment(self) -> dict[str, str]:
        """Return what must not stand in the arguments of `sky launch`: it reads them from its environment."""
        hidden = hidden_values(self._spec, self._hidden, os.environ)
        return {**hidden, SECRET: secrets.token_hex(32)}
