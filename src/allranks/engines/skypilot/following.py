"""A run on SkyPilot's machines, from here: launched, followed through its log, taken down (drives `sky`)."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from shutil import which
from typing import Any

from allranks.engines.lines import ProcessLines
from allranks.errors import NodeError, UsageError
from allranks.exitcodes import CTRL_C, NODE_FAILED, PROGRAM_FAILED, TERMINATED
from allranks.findings import Finding, Verdict
from allranks.runs.directory import RunDirectory
from allranks.runs.replay import Replay, Shown
from allranks.runs.result import untold_result, write_result

Document = dict[str, Any]
LOG = "sky.log"
PATIENCE = 300.0  # seconds for one call of sky
ENDING = 20.0  # beyond the ranks' grace, before the machines are taken down
_PREFIX = re.compile(r"^(?:\x1b\[[0-9;]*m)*\([^()]*\)(?:\s|\x1b\[[0-9;]*m)*")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def require() -> None:
    """sky is there."""
    if which("sky") is None:
        raise UsageError("--sky needs SkyPilot's `sky` on PATH; `allranks render skypilot` writes the task without it")


def launch_argv(name: str, task: str, secrets: Sequence[str]) -> list[str]:
    """`sky launch`; values of secrets come from its environment."""
    given = [word for secret in secrets for word in ("--secret", secret)]
    return ["sky", "launch", "--cluster", name, "--yes", *given, task]


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


class SkyRun:
    """One run; `turn` is called a few times a second until it gives the result."""

    def __init__(self, run: RunDirectory, where: Document, view: Shown) -> None:
        self.run = run
        self.view = view
        self.name, self.keep = str(where["name"]), bool(where.get("autostop"))
        self.grace = float(where.get("grace") or 30.0)
        self.replay = Replay(run, view)
        self.stopping = False
        self._sky: ProcessLines | None = None
        self._said: list[str] = []
        self._stopped_at = 0.0

    def start(self, argv: Sequence[str], environ: Mapping[str, str], cwd: str | None = None) -> SkyRun:
        """Starts `sky launch`, or `sky logs` for a run that is there."""
        self._sky = ProcessLines(argv, environ, cwd, errors=True)
        return self

    def turn(self) -> Document | None:
        """Shows what is new; the result once the run is over."""
        for line in self._sky.take() if self._sky is not None else ():
            self._line(line)
        if self.replay.result is not None:
            return self.replay.result
        late = self.stopping and time.monotonic() - self._stopped_at > self.grace + ENDING
        over = self._sky is not None and self._sky.over
        return self._without_result() if over or late else None

    def _line(self, line: str) -> None:
        text = _PREFIX.sub("", line, count=1)
        if text.lstrip().startswith("{"):
            self.replay.line(text.strip())
            return
        clean = _COLOUR.sub("", line).rstrip()
        if clean.strip():
            self._said = [*self._said, clean.strip()[:300]][-20:]
            with (self.run.path / LOG).open("a", encoding="utf-8") as file:
                file.write(clean + "\n")

    def _without_result(self) -> Document:
        code = self._sky.code if self._sky is not None else None
        verdict = None
        if not self.stopping:
            message = f"sky ended (exit code {code}) and node 0 has said nothing of a result"
            finding = Finding(
                "unknown",
                "fail",
                message,
                f"see {self.run.path}/{LOG}",
                evidence=tuple(self._said[-5:]),
                check="skypilot",
            )
            verdict = Verdict(finding, "unknown", 0.4)
        return untold_result(self.run, TERMINATED if self.stopping else NODE_FAILED, verdict)

    def stop(self) -> None:
        """Once: the job is cancelled, which lets ranks save. Twice: the machines go now."""
        first = not self.stopping
        self.stopping = True
        self._stopped_at = time.monotonic() if first else 0.0
        self._say("cancelling the job" if first else "ending at once")
        if first:
            try:
                call("cancel", "--all", "--yes", self.name)
            except NodeError as error:
                self._say(str(error))
                self._stopped_at = 0.0

    def _say(self, message: str) -> None:
        event = {"t": time.time(), "event": "job", "job": self.name, "message": message}
        self.run.append_event(event)
        self.view.event(event)

    def finish(self, result: Document, reason: str = "") -> Document:
        """Writes the result down and takes the machines down, unless --autostop keeps them for a while."""
        self.replay.close()
        left: Document = {}
        if not self.keep or self.stopping:
            try:
                call("down", "--yes", self.name)
            except NodeError as error:
                left = {self.name: [{"pid": 0, "state": "?", "command": str(error)}]}
        if self._sky is not None:
            self._sky.end()
        if self.stopping and result["exit"] in (TERMINATED, NODE_FAILED, PROGRAM_FAILED):
            result = {**result, "exit": CTRL_C if reason == "ctrl-c" else TERMINATED, "verdict": None}
        found = {**result, "left": left}
        write_result(self.run, found, self.stopping)
        return found


def log_argv(name: str) -> list[str]:
    """The log of the cluster's newest job, from its beginning, until it ends."""
    return ["sky", "logs", name]


def environment(secrets: Mapping[str, str]) -> dict[str, str]:
    """Of `sky launch`: the caller's, and what must not stand in its arguments."""
    return {**os.environ, **secrets}
