"""run --slurm outside of an allocation: submit a job whose first node has the controller, then follow it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any

import typer

import allranks
from allranks.backends.slurm import jobs
from allranks.cluster import Cluster, Node
from allranks.diagnose.slurm import Job, waiting
from allranks.errors import AllranksError
from allranks.plan.plan import make_plan
from allranks.plan.render import Request
from allranks.plan.render.slurm import batch_script
from allranks.report.live import JsonView, View
from allranks.runs.concluded import conclude
from allranks.runs.directory import RunDirectory
from allranks.runs.reading import LogReader
from allranks.spec import RunSpec
from allranks.spec.document import to_document
from allranks.spec.secrets import redact_argv, redact_text
from allranks.spec.words import secret_values

from .exits import CTRL_C, DONE
from .signals import Signals

PAUSE = 0.2
LOOK_EVERY = 1.0  # seconds between two questions to slurmctld; it grows while nothing changes
LOOK_AT_MOST = 15.0
LATE = 10.0  # seconds that a shared file system may take to show the result of a job that is over
SOON = 1.0  # where it shows the job's output, and no controller has begun
QUESTION = "\nCtrl-C: [c]ancel the job, or [d]etach (it goes on)? "


def submit(spec: RunSpec, json_: bool) -> int:
    """Submits and follows; gives the exit code."""
    if spec.dry_run:
        typer.echo(describe(spec, json_))
        return DONE
    jobs.require()
    run = RunDirectory.create(Path(os.path.abspath(spec.runs_dir)), spec.name, time.time())
    (run.path / "outputs").mkdir(mode=0o700, exist_ok=True)
    write_run(run, spec)
    try:
        script = batch_script(make_request(spec), str(run.path))
        job = jobs.submit(script, {**os.environ, **secret_values(spec)}, os.getcwd())
    except AllranksError:
        shutil.rmtree(run.path)  # nothing has happened in it
        raise
    run.write_document("job.json", {"job": job, "submitted_from": socket.gethostname()})
    if spec.detach:
        return _leave(run, job, json_)
    view = JsonView() if json_ else View(fold=spec.fold)
    view.event(_event(job, f"submitted; {run.path}"))
    return close(run, follow(run, job, view, 0), view, json_)


def make_request(spec: RunSpec) -> Request:
    """What the renderer needs: as many nodes as are asked for, without names."""
    nodes = tuple(Node(i, f"node{i}", f"node{i}") for i in range(spec.nodes or 1))
    plan = make_plan(spec, Cluster(nodes, "--nodes"), {})
    return Request(spec, plan, os.getcwd(), allranks=(sys.executable, "-m", "allranks"))


def describe(spec: RunSpec, json_: bool) -> str:
    """--dry-run: the script and the command that takes it."""
    runs = os.path.abspath(spec.runs_dir)
    script = redact_text(batch_script(make_request(spec), f"{runs}/{spec.name}-<time>"))
    command = ["sbatch", "--parsable"]
    if json_:
        return json.dumps({"schema": 1, "command": command, "stdin": script})
    return f"would give this script to `{' '.join(command)}` on its standard input; nothing was done\n\n{script}"


def write_run(run: RunDirectory, spec: RunSpec) -> None:
    """run.json and status.json until the controller in the job writes its own."""
    document = {
        "run": run.name, "uid": "", "started": time.time(), "command": redact_argv(spec.command),
        "spec": to_document(spec), "nodes": [], "source": "Slurm", "workdir": os.getcwd(),
        "versions": {"allranks": allranks.__version__}, "controller": None,
    }  # fmt: skip
    run.write_document("run.json", document)
    status = {"run": run.name, "state": "queued", "t": time.time(), "attempt": 0, "world_size": None, "nodes": []}
    run.write_document("status.json", status)


def _leave(run: RunDirectory, job: str, json_: bool) -> int:
    if json_:
        document = {"schema": 1, "run": run.name, "directory": str(run.path), "job": job, "detached": True, "exit": 0}
        typer.echo(json.dumps(document))
    else:
        typer.echo(f"submitted job {job}: allranks status {run.name} · logs -f · attach · stop")
    return DONE


def close(run: RunDirectory, result: dict[str, Any] | None, view: View | JsonView, json_: bool) -> int:
    """The end of following; `result` is None where the person has left."""
    if result is None:
        return DONE
    if json_:
        sys.stdout.write(json.dumps({"schema": 1, **result}) + "\n")
    view.closing(result, result.get("verdict"))
    return int(result["exit"])


def _event(job: str, message: str) -> dict[str, Any]:
    return {"t": time.time(), "event": "job", "job": job, "message": message}


# -- following -----------------------------------------------------------------------------------------


def decide(signals: Signals, view: View | JsonView) -> str | None:
    """stop, leave, or None: nothing has happened. On a terminal Ctrl-C asks, else it is a stop, as SIGTERM is."""
    seen = signals.take()
    if seen != "ctrl-c":
        return seen
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "stop"
    view.pause()
    sys.stderr.write(QUESTION)
    sys.stderr.flush()
    answer = sys.stdin.readline().strip().lower()
    view.resume()
    return "stop" if answer.startswith("c") or signals.take() else "leave" if answer.startswith("d") else None


class Follower:
    """Shows a job's way through the queue and the run's events and output, until there is a result."""

    def __init__(self, run: RunDirectory, job: str, view: View | JsonView, offset: int) -> None:
        self.run, self.job, self.view = run, job, view
        self.asked_to_stop = False
        self._offset, self._reader = offset, LogReader(run)
        if offset:
            self._reader.skip_to_end()
        self._said, self._next, self._pause = "", 0.0, LOOK_EVERY
        self._last: Job | None = None
        self._begun = offset > 0
        self._over_since: float | None = None

    def turn(self) -> dict[str, Any] | None:
        """Shows what is new; the result once the run is over."""
        now = time.time()
        self._show(now)
        result = self.run.read_document("result.json")
        if now >= self._next or (result is not None and _by_slurm(result)):
            self._look(now)
        if result is not None and not self._goes_on(result):
            self._show(now)
            return result
        if self._over_since is not None and now - self._over_since > self._patience():
            return self.run.read_document("result.json") or conclude(self.run, self._last, self.asked_to_stop)
        return None

    def _patience(self) -> float:
        """How long a result may be on its way once the job is over: not at all where there can be none."""
        if self.asked_to_stop:
            return 0.0
        return SOON if not self._begun and (self.run.path / "slurm.log").exists() else LATE

    def _show(self, now: float) -> None:
        events, self._offset = self.run.read_events(self._offset)
        for event in events:
            if event.get("event") == "run-start":
                self._begun = True
                self._open()
            self.view.event(event)
        for node, rank, data in self._reader.fresh():
            self.view.output(node, rank, data, now)
        status = self.run.read_document("status.json")
        if status is not None and status.get("nodes"):
            self.view.status(status, now)
        self.view.tick(now)

    def _open(self) -> None:
        document = self.run.read_document("run.json") or {}
        spec = document.get("spec") or {}
        opening = {"run": self.run.name, "directory": str(self.run.path), "command": document.get("command") or [],
                   "launcher": spec.get("launcher", "direct"), "source": document.get("source", "Slurm"),
                   "nodes": document.get("nodes") or []}  # fmt: skip
        if opening["nodes"]:
            self._reader.names_anew()
            self.view.opening(opening)

    def _look(self, now: float) -> None:
        """Asks slurmctld; a service that is away for a while is no end of the job."""
        try:
            found = jobs.look(self.job)
            said = (
                f"{found.state} {waiting(found)}"
                if found is not None and found.waits
                else (found.state if found else "")
            )
        except jobs.SlurmError as error:
            found, said = self._last, str(error)
        if said != self._said:
            self._said, self._pause = said, LOOK_EVERY
            if found is None or not found.over:
                self.view.event(_event(self.job, _lower(said)))
        else:
            self._pause = min(LOOK_AT_MOST, self._pause * 1.3)
        if self.run.read_document("result.json") is not None:
            self._pause = LOOK_EVERY
        self._last = found
        over = found is None or found.over
        self._over_since = (self._over_since or now) if over else None
        self._next = now + self._pause

    def _goes_on(self, result: dict[str, Any]) -> bool:
        """Slurm ended the attempt and starts the job again: there is more to come."""
        if not _by_slurm(result) or self.asked_to_stop or self._last is None:
            return False
        return not self._last.over


def _by_slurm(result: dict[str, Any]) -> bool:
    verdict = result.get("verdict") or {}
    return verdict.get("check") == "slurm" or verdict.get("cause") in (
        "slurm-preempted-or-timeout",
        "node-network-down",
    )


def _lower(said: str) -> str:
    state, _, rest = said.partition(" ")
    return f"{state.lower()}: {rest}" if rest and state.isupper() else said.lower() if said.isupper() else said


def follow(run: RunDirectory, job: str, view: View | JsonView, offset: int) -> dict[str, Any] | None:
    """Until the result, which it gives; None where the person leaves the job alone."""
    follower, signals = Follower(run, job, view, offset), Signals()
    try:
        while True:
            result = follower.turn()
            if result is not None:
                return {**result, "exit": CTRL_C} if follower.asked_to_stop and result["exit"] == 143 else result
            wanted = decide(signals, view)
            if wanted == "leave":
                print(
                    f"\nleft; job {job} goes on: allranks status {run.name} · logs -f · attach · stop", file=sys.stderr
                )
                return None
            if wanted == "stop":
                _stop(follower)
            time.sleep(PAUSE)
    finally:
        signals.restore()


def _stop(follower: Follower) -> None:
    """Once: ranks may save. Twice: now."""
    from .stopping import end_job

    first, follower.asked_to_stop = not follower.asked_to_stop, True
    follower.view.event(_event(follower.job, "being stopped" if first else "being cancelled"))
    end_job(follower.job, first)
