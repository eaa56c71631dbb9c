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

import click

import allranks
from allranks.cluster import Cluster, Node
from allranks.diagnose.slurm import Job, is_hopeless, never_starts, waiting
from allranks.engines.slurm import jobs
from allranks.errors import AllranksError
from allranks.exitcodes import CTRL_C, DONE, NODE_FAILED, TERMINATED
from allranks.findings import Verdict
from allranks.plan.plan import make_plan
from allranks.plan.render import Request
from allranks.plan.render.slurm import batch_script, run_suffix
from allranks.report.live import JsonView, View
from allranks.runs.concluded import LATE, OUTPUT, conclude
from allranks.runs.directory import RunDirectory
from allranks.runs.reading import LogReader
from allranks.runs.result import untold_result
from allranks.settings import RunSpec
from allranks.settings.document import to_document
from allranks.settings.secrets import redact_argv, redact_text
from allranks.settings.words import secret_values

from .signals import Signals

PAUSE = 0.2
LOOK_EVERY = 1.0  # seconds between two questions to slurmctld; it grows while nothing changes
LOOK_AT_MOST = 15.0
SOON = 1.0  # where it shows the job's output, and no controller has begun
HOPELESS_LOOKS = 4  # at a reason that waiting does not end: slurmctld may have looked at the job in passing
QUESTION = "\nCtrl-C: [c]ancel the job, or [d]etach (it goes on)? "


def submit(spec: RunSpec, json_: bool, dry_run: bool = False) -> int:
    """Submits and follows; gives the exit code."""
    if dry_run:
        click.echo(describe(spec, json_))
        return DONE
    jobs.require()
    run = RunDirectory.create(Path(os.path.abspath(spec.places.runs_dir)), spec.places.name, time.time())
    (run.path / "outputs").mkdir(mode=0o700, exist_ok=True)
    try:
        script = batch_script(make_request(spec), str(run.path))
        job = jobs.submit(script, {**os.environ, **secret_values(spec)}, os.getcwd())
    except AllranksError:
        shutil.rmtree(run.path)  # nothing has happened in it
        raise
    run = _name_after(run, spec, job)
    jobs.set_comment(job, str(run.path))
    if spec.output.detach:
        return _leave(run, job, json_)
    view = JsonView() if json_ else View(fold=spec.output.fold)
    view.event(_event(job, f"submitted; {run.path}"))
    return close(run, follow(run, job, view, 0), view, json_)


def _name_after(run: RunDirectory, spec: RunSpec, job: str) -> RunDirectory:
    """Give the run directory the job's number. It is complete when the job sees it under that name."""
    named = RunDirectory(run.path.with_name(run.name + run_suffix(job)))
    write_run(run, spec, named.name)
    run.write_document("job.json", {"job": job, "submitted_from": socket.gethostname()})
    (run.path / OUTPUT).symlink_to(os.path.join(os.getcwd(), f"slurm-{job}.out"))
    os.rename(run.path, named.path)
    return named


def make_request(spec: RunSpec) -> Request:
    """What the renderer needs: as many nodes as are asked for, without names."""
    nodes = tuple(Node(i, f"node{i}", f"node{i}") for i in range(spec.target.nodes or 1))
    plan = make_plan(spec, Cluster(nodes, "--nodes"), {})
    return Request(spec, plan, os.getcwd(), allranks=(sys.executable, "-m", "allranks"))


def describe(spec: RunSpec, json_: bool) -> str:
    """--dry-run: the script and the command that takes it."""
    runs = os.path.abspath(spec.places.runs_dir)
    script = redact_text(batch_script(make_request(spec), f"{runs}/{spec.places.name}-<time>"))
    command = ["sbatch", "--parsable"]
    if json_:
        return json.dumps({"schema": 1, "command": command, "stdin": script})
    return f"would give this script to `{' '.join(command)}` on its standard input; nothing was done\n\n{script}"


def write_run(run: RunDirectory, spec: RunSpec, name: str) -> None:
    """run.json and status.json until the controller in the job writes its own."""
    document = {
        "run": name,
        "uid": "",
        "started": time.time(),
        "command": redact_argv(spec.launch.command),
        "spec": to_document(spec),
        "nodes": [],
        "source": "Slurm",
        "workdir": os.getcwd(),
        "versions": {"allranks": allranks.__version__},
        "controller": None,
    }
    run.write_document("run.json", document)
    status = {"run": name, "state": "queued", "t": time.time(), "attempt": 0, "world_size": None, "nodes": []}
    run.write_document("status.json", status)


def _leave(run: RunDirectory, job: str, json_: bool) -> int:
    if json_:
        document = {"schema": 1, "run": run.name, "directory": str(run.path), "job": job, "detached": True, "exit": 0}
        click.echo(json.dumps(document))
    else:
        click.echo(f"submitted job {job}: allranks status {run.name} · logs -f · attach · stop")
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
    """What the person wants: ctrl-c or stop (both end the run), leave, or None. On a terminal Ctrl-C asks first."""
    seen = signals.take()
    if seen != "ctrl-c":
        return seen
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "ctrl-c"
    view.pause()
    sys.stderr.write(QUESTION)
    sys.stderr.flush()
    answer = sys.stdin.readline().strip().lower()
    view.resume()
    if answer.startswith("c") or signals.take():
        return "ctrl-c"
    return "leave" if answer.startswith("d") else None


class Follower:
    """Shows a job's way through the queue and the run's events and output, until there is a result."""

    def __init__(self, run: RunDirectory, job: str, view: View | JsonView, offset: int) -> None:
        self.run = run
        self.job = job
        self.view = view
        self.stopped_by = ""  # ctrl-c or stop, once the person has ended the run
        self._offset, self._reader = offset, LogReader(run)
        if offset:
            self._reader.skip_to_end()
        self._said: set[str] = set()  # of the job's present state: its reasons to wait come and go
        self._state = ""
        self._next = 0.0
        self._pause = LOOK_EVERY
        self._last: Job | None = None
        self._hopeless_looks = 0
        self.begun = offset > 0
        self._over_since: float | None = None

    def turn(self) -> dict[str, Any] | None:
        """Shows what is new; the result once the run is over."""
        now = time.monotonic()
        self._show()
        result = self.run.read_document("result.json")
        if now >= self._next or (result is not None and _by_slurm(result)):
            self._look(now)
        if result is not None and not self._goes_on(result):
            self._show()
            return result
        if self._over_since is not None and now - self._over_since > self._patience():
            return self.run.read_document("result.json") or conclude(self.run, self._last, bool(self.stopped_by))
        if self._hopeless_looks >= HOPELESS_LOOKS and self._last is not None and not self.stopped_by:
            return self._never_starts(self._last)
        return None

    def _never_starts(self, job: Job) -> dict[str, Any]:
        """Stop following, and leave the job to its owner: nothing is written, it may be changed and start after all."""
        finding = never_starts(job, self.run.name)
        verdict = Verdict(finding, finding.id, 0.9)
        return untold_result(self.run, NODE_FAILED, verdict, [finding])

    def _patience(self) -> float:
        """How long a result may be on its way once the job is over: not at all where there can be none."""
        if self.stopped_by:
            return 0.0
        return SOON if not self.begun and (self.run.path / OUTPUT).exists() else LATE

    def _show(self) -> None:
        t = time.time()
        events, self._offset = self.run.read_events(self._offset)
        for event in events:
            if event.get("event") == "run-start":
                self.begun = True
                self._open()
            self.view.event(event)
        for node, rank, data in self._reader.fresh():
            self.view.output(node, rank, data, t)
        status = self.run.read_document("status.json")
        if status is not None and status.get("nodes"):
            self.view.status(status, t)
        self.view.tick(t)

    def _open(self) -> None:
        document = self.run.read_document("run.json") or {}
        spec = document.get("spec") or {}
        opening = {
            "run": self.run.name,
            "directory": str(self.run.path),
            "command": document.get("command") or [],
            "launcher": spec.get("launcher", "direct"),
            "source": document.get("source", "Slurm"),
            "nodes": document.get("nodes") or [],
        }
        if opening["nodes"]:
            self._reader.names_anew()
            self.view.opening(opening)

    def _look(self, now: float) -> None:
        """Asks slurmctld; a service that is away for a while is no end of the job."""
        try:
            found = jobs.look(self.job)
            said = _state_line(found)
            self._hopeless_looks = self._hopeless_looks + 1 if found is not None and is_hopeless(found) else 0
        except jobs.SlurmError as error:
            found = self._last
            said = str(error)
        self._tell(found, said)
        if self.run.read_document("result.json") is not None:
            self._pause = LOOK_EVERY
        self._last = found
        over = found is None or found.over
        self._over_since = (self._over_since or now) if over else None
        self._next = now + self._pause

    def _tell(self, found: Job | None, said: str) -> None:
        """What is new of the job; a reason that was told in this state is not told again."""
        state = found.state if found is not None else ""
        if state != self._state:
            self._state = state
            self._said.clear()
        if said in self._said:
            self._pause = min(LOOK_AT_MOST, self._pause * 1.3)
            return
        self._said.add(said)
        self._pause = LOOK_EVERY
        if found is None or not found.over:
            self.view.event(_event(self.job, _lower(said)))

    def _goes_on(self, result: dict[str, Any]) -> bool:
        """Slurm ended the attempt and starts the job again: there is more to come."""
        if not _by_slurm(result) or self.stopped_by or self._last is None:
            return False
        return not self._last.over


def _by_slurm(result: dict[str, Any]) -> bool:
    verdict = result.get("verdict") or {}
    return verdict.get("check") == "slurm" or verdict.get("cause") in (
        "slurm-preempted-or-timeout",
        "node-network-down",
    )


def _state_line(job: Job | None) -> str:
    """The job's state, with the reason where it waits."""
    if job is None:
        return ""
    return f"{job.state} {waiting(job)}" if job.waits else job.state


def _lower(said: str) -> str:
    state, _, rest = said.partition(" ")
    if rest and state.isupper():
        return f"{state.lower()}: {rest}"
    if said.isupper():
        return said.lower()
    return said


def follow(run: RunDirectory, job: str, view: View | JsonView, offset: int) -> dict[str, Any] | None:
    """Until the result, which it gives; None where the person leaves the job alone."""
    follower = Follower(run, job, view, offset)
    signals = Signals()
    try:
        while True:
            result = follower.turn()
            if result is not None:
                return as_stopped(result, follower.stopped_by)
            wanted = decide(signals, view)
            if wanted == "leave":
                print(
                    f"\nleft; job {job} goes on: allranks status {run.name} · logs -f · attach · stop", file=sys.stderr
                )
                return None
            if wanted is not None:
                stop(follower, wanted)
            for name in signals.take_for_the_ranks():
                pass_signal(follower, name)
            time.sleep(PAUSE)
    finally:
        signals.restore()


def as_stopped(result: dict[str, Any], by: str) -> dict[str, Any]:
    """The result for who followed: the controller is ended by SIGTERM, also where a Ctrl-C here was the reason."""
    if by == "ctrl-c" and result["exit"] == TERMINATED:
        return {**result, "exit": CTRL_C}
    return result


def stop(follower: Follower, by: str) -> None:
    """Once: ranks may save. Twice: now."""
    from .stopping import end_job

    first = not follower.stopped_by
    follower.view.event(_event(follower.job, "being stopped" if first else "being cancelled"))
    try:
        end_job(follower.job, first)
    except jobs.SlurmError as error:
        follower.view.event(_event(follower.job, f"not stopped, ask again: {error}"))
        return
    follower.stopped_by = follower.stopped_by or by


def pass_signal(follower: Follower, name: str) -> None:
    """Send SIGUSR1 or SIGUSR2 to the controller in the job, which gives it to each rank once."""
    if not follower.begun:
        follower.view.event(_event(follower.job, f"SIG{name} reaches no rank: the run has not begun"))
        return
    try:
        jobs.tell(follower.job, name)
    except jobs.SlurmError as error:
        follower.view.event(_event(follower.job, f"SIG{name} is not passed on: {error}"))
