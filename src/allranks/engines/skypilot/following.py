"""A run on SkyPilot's machines, from here: launched, followed through its log, taken down (drives `sky`)."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from shutil import which
from typing import NamedTuple, Optional

from allranks.engines.following import FollowerView, OnCtrlC, job_event
from allranks.engines.remote import as_stopped
from allranks.errors import NodeError, UsageError
from allranks.exitcodes import NODE_FAILED, TERMINATED
from allranks.findings import Finding, Verdict
from allranks.protocol.messages import RemainingProcess
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Left, ResultDocument
from allranks.runs.replay import Replay
from allranks.runs.result import least_result, write_result

from ..program_lines import ProcessLines

LOG = "sky.log"
PATIENCE = 300.0  # seconds for one call of sky
ENDING = 20.0  # beyond the ranks' grace, before the machines are taken down
_PREFIX = re.compile(r"^(?:\x1b\[[0-9;]*m)*\([^()]*\)(?:\s|\x1b\[[0-9;]*m)*")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def require() -> None:
    """sky is there."""
    if which("sky") is None:
        raise UsageError("--sky needs SkyPilot's `sky` on PATH. `allranks render skypilot` writes the task without it")


def launch_argv(name: str, task: str, secrets: Sequence[str]) -> list[str]:
    """`sky launch`; values of secrets come from its environment."""
    options = [word for secret in secrets for word in ("--secret", secret)]
    return ["sky", "launch", "--cluster", name, "--yes", *options, task]


def call(*words: str) -> str:
    """What sky prints; NodeError with its last words."""
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


class SkyFollower:
    """The cluster of one run, followed through the output of `argv`: `sky launch`, or `sky logs` for one that runs."""

    job: str | None = None
    on_ctrl_c = OnCtrlC.STOP
    leaves_page = True

    def __init__(
        self,
        run: RunDirectory,
        place: ClusterOfRun,
        view: FollowerView,
        argv: Sequence[str],
        environ: Mapping[str, str],
    ) -> None:
        self.run = run
        self.view = view
        self.stopping = False
        self._place = place
        self._replay = Replay(run, view)
        self._sky = ProcessLines(argv, environ, errors=True) if argv else None
        self._last_lines: list[str] = []
        self._stopped_at = 0.0
        self._lost_signals: set[str] = set()

    def show_in(self, view: FollowerView) -> None:
        """Show what comes in another view from now on."""
        self.view = view
        self._replay.view = view

    def turn(self) -> ResultDocument | None:
        """Shows what is new; the result once the run is over."""
        for line in self._sky.take() if self._sky is not None else ():
            self._line(line)
        if self._replay.result is not None:
            return self._replay.result
        is_late = self.stopping and time.monotonic() - self._stopped_at > self._place.grace + ENDING
        is_over = self._sky is not None and self._sky.over
        return self._without_result(self._end_of_sky()) if is_over or is_late else None

    def _line(self, line: str) -> None:
        text = _PREFIX.sub("", line, count=1)
        if text.lstrip().startswith("{"):
            self._replay.line(text.strip())
            return
        clean = _COLOUR.sub("", line).rstrip()
        if clean.strip():
            self._last_lines = [*self._last_lines, clean.strip()[:300]][-20:]
            with (self.run.path / LOG).open("a", encoding="utf-8") as file:
                file.write(clean + "\n")

    def _end_of_sky(self) -> str:
        code = self._sky.code if self._sky is not None else None
        return f"sky ended (exit code {code}) and node 0 has said nothing of a result"

    def _without_result(self, message: str) -> ResultDocument:
        if self.stopping:
            return least_result(self.run, TERMINATED, None)
        finding = Finding(
            "unknown",
            "fail",
            message,
            f"see {self.run.path}/{LOG}",
            evidence=tuple(self._last_lines[-5:]),
            check="skypilot",
        )
        return least_result(self.run, NODE_FAILED, Verdict(finding, "unknown", 0.4))

    def stop(self) -> None:
        """Once: the job is cancelled, which lets ranks save. Twice: the machines go now."""
        first = not self.stopping
        self.stopping = True
        self._stopped_at = time.monotonic() if first else 0.0
        self._say("cancelling the job" if first else "ending at once")
        if first:
            try:
                call("cancel", "--all", "--yes", self._place.name)
            except NodeError as error:
                self._say(str(error))
                self._stopped_at = 0.0

    def pass_signal(self, name: str) -> None:
        """Say once that machines of a cloud take no signals from here."""
        if name not in self._lost_signals:
            self._lost_signals.add(name)
            message = f"SIG{name} is not passed on: skypilot runs take no signals from here"
            self.view.event({"t": time.time(), "event": "note", "message": message})

    def _say(self, message: str) -> None:
        event = job_event(self._place.name, message)
        self.run.append_event(event)
        self.view.event(event)

    def finish(self, result: ResultDocument, reason: str) -> ResultDocument:
        """Take the machines down, unless --autostop keeps them for a while, and write the result."""
        left: Left = {}
        if not self._place.autostop or self.stopping:
            try:
                call("down", "--yes", self._place.name)
            except NodeError as error:
                left = {self._place.name: (RemainingProcess(0, "?", str(error)),)}
        return self._write(as_stopped(result, reason) if self.stopping else result, left)

    def settle(self) -> None:
        """Write the end of a run that ended without a follower, and whose machines are gone."""
        message = f"the machines of {self._place.name} were taken down before its result was read"
        self._write(self._without_result(message), {})

    def _write(self, result: ResultDocument, left: Left) -> ResultDocument:
        self._replay.close()
        if self._sky is not None:
            self._sky.end()
        complete = replace(result, left=left)
        write_result(self.run, complete, self.stopping)
        return complete


def log_argv(name: str) -> list[str]:
    """The log of the cluster's newest job, from its beginning, until it ends."""
    return ["sky", "logs", name]
