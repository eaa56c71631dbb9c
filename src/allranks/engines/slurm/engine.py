"""Slurm as an engine (IO). Inside an allocation this process controls the run, as on named hosts.

Outside of one a job is submitted, and its first node has the controller.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from allranks.cluster.slurm_allocation import read_allocation
from allranks.diagnose.slurm_jobs import (
    SlurmJob,
    ended,
    is_hopeless,
    nearly_over,
    never_starts,
    seconds_since_end,
    waiting,
)
from allranks.engines import Engine, PreparedLaunch, Stopped, engine_named
from allranks.engines.following import PAUSE, Display, FollowedRun, OnCtrlC, show_opening, verdict_on
from allranks.errors import AllranksError, NodeError, UsageError
from allranks.exitcodes import NODE_FAILED, TERMINATED
from allranks.findings import Finding, Verdict
from allranks.plan.ranks import Plan
from allranks.plan.render import RenderRequest
from allranks.plan.render.slurm import batch_script, run_suffix
from allranks.plan.slurm_commands import apptainer_command
from allranks.protocol.codec import document_line
from allranks.protocol.run_facts import Fact, JobProgress, NodesAsked, RunStart, Stamped, of_kind
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document, ResultDocument, RunDocument
from allranks.runs.opening import write_first_status, write_opening
from allranks.runs.regular import read_end
from allranks.runs.result import least_result, new_run, write_result
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.command_line import secret_values
from allranks.settings.layers import Resolved
from allranks.settings.secrets import redact_text
from allranks.unpacked import own_command

from . import jobs

# -- The result of a run whose controller could not write one: what Slurm says of its job ------------------------------

OUTPUT = "slurm.log"  # in the run directory: a link to the job's own output
TAIL = 16 << 10
LATE = 10.0  # seconds that a shared file system may take to show the result of a job that is over
_ABSENT = re.compile(r"No such file or directory|has no /|not found|[Uu]nable to (?:open|create)|couldn't chdir")


def conclude(run: RunDirectory, job: SlurmJob | None, stopped: bool = False) -> ResultDocument:
    """Write result.json, verdict.json and the end of events and status, and return the result.

    A result that the controller has written meanwhile stays.
    """
    written = run.read_result()
    if written is not None:
        return written
    result = least_result(run, TERMINATED, None)
    if not stopped:
        result = least_result(run, NODE_FAILED, verdict_on(_finding(run, job), 0.9))
    return write_result(run, result, stopped)


def has_begun(run: RunDirectory) -> bool:
    """Return whether a controller has worked in the run."""
    return any(of_kind(run.read_facts()[0], RunStart))


def _how_ended(job: SlurmJob) -> str:
    figures = {"exit code": job.exit_code, "signal": job.exit_signal}
    return ", ".join([job.state, *(f"{name} {value}" for name, value in figures.items() if value is not None)])


def _finding(run: RunDirectory, job: SlurmJob | None) -> Finding:
    number = run.job or "?"
    reason = ended(job) if job is not None else None
    if reason is not None:
        return reason
    words = _last_words(run)
    how = f" ({_how_ended(job)})" if job is not None else ""
    if has_begun(run):
        message = f"the controller of {run.name} in job {number} ended without a result{how}"
        return Finding("unknown", "fail", message, f"see {run.path}/{OUTPUT}", evidence=words)
    if job is None and not words:
        message = f"job {number} has ended before it started, and Slurm no longer knows how"
        remedy = f"where there is accounting: sacct -j {number} -o JobID,State,ExitCode,End"
        return Finding("unknown", "fail", message, remedy)
    absent = not words or any(_ABSENT.search(line) for line in words)
    message = f"job {number} ended{how} before allranks had started in it"
    remedy = (
        f"the working directory, {run.path} and this Python must lie on a file system that the nodes share\n"
        f"see {run.path}/{OUTPUT}, and try: srun --nodes=1 ls -d {run.path}"
    )
    return Finding("remote-path-missing" if absent else "slurm-config", "fail", message, remedy, evidence=words)


def _last_words(run: RunDirectory) -> tuple[str, ...]:
    lines = read_end(run.path / OUTPUT, TAIL).splitlines()
    return tuple(line.strip()[:300] for line in lines if line.strip())[-3:]


# -- Following a job: through the queue, then events and output, until there is a result -------------------------------

ASK_EVERY = 1.0  # seconds between two questions to slurmctld; it grows while nothing changes
ASK_AT_MOST = 15.0
SOON = 1.0  # where it shows the job's output, and no controller has begun
CAUSES_BY_SLURM = ("slurm-preempted-or-timeout", "node-network-down")
HOPELESS_LOOKS = 4  # at a reason that waiting does not end: slurmctld may have looked at the job in passing


class JobFollower(FollowedRun):
    """A job that another process controls; with an `offset` into its events, what is there already is not shown."""

    job: str
    on_ctrl_c = OnCtrlC.ASK
    leaves_page = False  # the controller in the job does

    def __init__(self, run: RunDirectory, job: str, view: View, offset: int = 0, first_words: str = "") -> None:
        super().__init__(run, view)
        self.job = job
        self.begun = offset > 0 and has_begun(run)
        self._display = Display(run, offset)
        self._first_words = first_words
        self._shown_states: set[str] = set()  # of the job's present state: its reasons to wait come and go
        self._state = ""
        self.ask_at = 0.0
        self.pause = ASK_EVERY
        self._last: SlurmJob | None = None
        self._asked_about: ResultDocument | None = None
        self._hopeless_looks = 0
        self.over_since: float | None = None

    def turn(self) -> ResultDocument | None:
        """Show what is new; return the result once the run is over."""
        now = time.monotonic()
        if self._first_words:
            self._say(self._first_words)
            self._first_words = ""
        self._display.turn(self.view, self._on_event)
        result = self.run.read_result()
        ended_by_slurm = result is not None and _by_slurm(result)
        if now >= self.ask_at or (ended_by_slurm and result != self._asked_about):
            self._asked_about = result
            self.ask(now)
        starts_again = ended_by_slurm and self._last is not None and not self._last.over and not self.stopping
        if result is not None and not starts_again:
            self._display.turn(self.view, self._on_event)
            return result
        if self.over_since is not None and now - self.over_since > self._patience():
            return self.run.read_result() or conclude(self.run, self._last, self.stopping)
        if self._hopeless_looks >= HOPELESS_LOOKS and self._last is not None and not self.stopping:
            return self._never_starts(self._last)
        return None

    def _say(self, message: str) -> None:
        self.view.event(Stamped("", time.time(), None, JobProgress(self.job, message)))

    def _never_starts(self, job: SlurmJob) -> ResultDocument:
        """Stop following, and leave the job to its owner: nothing is written, it may be changed and start after all."""
        finding = never_starts(job, self.run.name)
        verdict = Verdict(finding, finding.id, 0.9)
        return least_result(self.run, NODE_FAILED, verdict, [finding])

    def _patience(self) -> float:
        """Seconds that a result may be on its way once the job is over: none where there can be no result."""
        if self.stopping:
            return 0.0
        if not self.begun and (self.run.path / OUTPUT).exists():
            return SOON
        return LATE

    def _on_event(self, stamped: Stamped[Fact]) -> None:
        if isinstance(stamped.fact, RunStart):
            self.begun = True
            self._display.reader.names_anew()
            show_opening(self.run, self.view)

    def ask(self, now: float) -> None:
        """Ask slurmctld for the job. A service that does not answer is asked again, and the job goes on."""
        try:
            self._note_job(jobs.look(self.job), now)
        except jobs.SlurmError as error:
            self._show_state(self._last, str(error))
        if self.run.has_ended and not (self._last is not None and self._last.waits):
            self.pause = ASK_EVERY
        self.ask_at = now + self.pause

    def _note_job(self, job: SlurmJob | None, now: float) -> None:
        self._hopeless_looks = self._hopeless_looks + 1 if job is not None and is_hopeless(job) else 0
        self._show_state(job, _state_line(job))
        self._last = job
        if job is not None and not job.over:
            self.over_since = None
        elif self.over_since is None:
            self.over_since = now

    def _show_state(self, job: SlurmJob | None, line: str) -> None:
        """Show what is new of the job; a reason that was shown in this state is not shown again."""
        state = job.state if job is not None else ""
        if state != self._state:
            self._state = state
            self._shown_states.clear()
        if line in self._shown_states:
            self.pause = min(ASK_AT_MOST, self.pause * 1.3)
            return
        self._shown_states.add(line)
        self.pause = ASK_EVERY
        if line and (job is None or not job.over):
            self._say(line)

    def stop(self) -> None:
        """End the run. Once: ranks may save. Twice: now."""
        self._say("being cancelled" if self.stopping else "being stopped")
        try:
            end_job(self.job, orderly=not self.stopping)
        except jobs.SlurmError as error:
            self._say(f"not stopped, ask again: {error}")
            return
        self.stopping = True

    def pass_signal(self, name: str) -> None:
        """Send SIGUSR1 or SIGUSR2 to the controller in the job, which gives it to each rank once."""
        if not self.begun:
            self._say(f"SIG{name} reaches no rank: the run has not begun")
            return
        try:
            jobs.tell(self.job, name)
        except jobs.SlurmError as error:
            self._say(f"SIG{name} is not passed on: {error}")


def _by_slurm(result: ResultDocument) -> bool:
    verdict = result.verdict
    return verdict is not None and (verdict.finding.check == "slurm" or verdict.cause in CAUSES_BY_SLURM)


def _state_line(job: SlurmJob | None) -> str:
    if job is None:
        return ""
    return f"{job.state.lower()}: {waiting(job)}" if job.waits else job.state.lower()


def end_job(job: str, orderly: bool) -> None:
    """Cancel a job that waits; in one that runs signal the controller, or cancel all of it where not `orderly`."""
    state = jobs.look(job)
    if state is None or state.over:
        return
    if state.waits or not orderly:
        jobs.cancel(job)
    else:
        jobs.tell(job)


LOOK_EVERY = 1.0  # seconds between two questions to slurmctld
BEYOND = 60.0  # seconds beyond the grace after which Slurm is asked to end the job itself


def in_container(spec: RunSpec) -> RunSpec:
    """Return the spec whose ranks apptainer starts, where an image was asked for and srun starts no containers.

    The interpreter is then the image's own.
    """
    if spec.launch.container_image is None or jobs.has_pyxis():
        return spec
    return spec.changed(wrap=apptainer_command(spec, os.getcwd()), python=spec.launch.python or "python3")


class Slurm(Engine):
    """Jobs of the cluster whose commands are on PATH."""

    def prepare(self, resolved: Resolved) -> PreparedLaunch:
        """Return the launch in our allocation, else the job that a start would submit."""
        if read_allocation(os.environ) is not None:
            return engine_named("ssh").prepare(dataclasses.replace(resolved, spec=in_container(resolved.spec)))
        return Submission(resolved.spec)

    def lives(self, run: RunDirectory) -> bool:
        """Return whether the job goes on, or slurmctld does not answer."""
        try:
            job = jobs.look(_job_of(run))
        except NodeError:
            return True
        except UsageError:
            return False  # no Slurm here
        return job is not None and not job.over

    def condition(self, run: RunDirectory, state: str) -> Document:
        """Return what Slurm says of the job that has the controller."""
        number = _job_of(run)
        try:
            job = jobs.look(number)
        except AllranksError as error:
            return {"job": {"id": number, "state": "unknown", "why": str(error)}}
        if job is None:
            return {"job": {"id": number, "state": "gone", "why": "Slurm does not remember it"}}
        why = waiting(job) if job.waits else nearly_over(job, time.time())
        return {"job": {"id": number, "state": job.state, "why": why}}

    def follow(self, run: RunDirectory, view: View) -> JobFollower:
        """Follow a job that was submitted before, or whose controller is on another host."""
        return JobFollower(run, _job_of(run), view, run.read_lines()[1])

    def stop(self, run: RunDirectory, grace: float, view: View) -> Stopped:
        """End the job through its controller, else through Slurm, and wait until the run is over.

        Raise SlurmError where slurmctld does not answer at first; later it is asked again.
        """
        number = _job_of(run)
        end_job(number, orderly=grace > 0)
        began = time.monotonic()
        asked = began
        is_cancelled = False
        while not run.has_ended:
            if time.monotonic() - asked > LOOK_EVERY:
                asked = time.monotonic()
                with suppress(jobs.SlurmError):
                    job = jobs.look(number)
                    if job is None or job.over:
                        conclude(run, job, stopped=True)
                        break
                    if asked - began > grace + BEYOND and not is_cancelled:
                        jobs.cancel(number)
                        is_cancelled = True
            time.sleep(PAUSE)
        return Stopped(run.name, "slurm", job=number)

    def stop_notice(self, run: RunDirectory, grace: float) -> str:
        """Return the sentence that `stop` begins with. A job that waits has no ranks."""
        with suppress(jobs.SlurmError):
            job = None if has_begun(run) else jobs.look(_job_of(run))
            if job is not None and job.waits:
                return f"removing {run.name} from the queue: job {run.job} had not started"
        return f"stopping {run.name} in job {run.job}: ranks have {grace:g} s to save"

    def finish(self, run: RunDirectory, now: float) -> None:
        """Write the end of a run whose job is over. A controller that had begun gets a moment to do it itself."""
        try:
            job = jobs.look(_job_of(run))
        except (NodeError, UsageError):
            return
        if job is not None and not job.over:
            return
        ended_before = seconds_since_end(job, now) if job is not None else None
        if ended_before is not None and ended_before < LATE and has_begun(run):
            return
        conclude(run, job)


def _job_of(run: RunDirectory) -> str:
    assert run.job is not None  # `engine_of` has seen to it
    return run.job


ENGINE = Slurm()


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
        request = RenderRequest(self._spec, Plan(()), os.getcwd(), allranks=own_command())
        return batch_script(request, run_dir)

    def describe(self, as_json: bool) -> str:
        """Return the script and the command that takes it, without secrets."""
        script = redact_text(self.script(f"{self._runs_dir}/{self._spec.places.name}-<time>"))
        if as_json:
            return document_line(SubmissionPlan(jobs.SBATCH, script))
        command = " ".join(jobs.SBATCH)
        return f"would give this script to `{command}` on its standard input, and nothing was done\n\n{script}"

    def start(self, view: View) -> JobFollower:
        """Submit it. Raise SlurmError, and leave no run directory, where Slurm refuses the job."""
        jobs.require()
        places = dataclasses.replace(self._spec.places, runs_dir=self._runs_dir)
        with new_run(places, time.time()) as unnamed:
            try:
                environ = {**os.environ, **secret_values(self._spec)}
                job = jobs.submit(self.script(str(unnamed.path)), environ, os.getcwd())
            except AllranksError:
                shutil.rmtree(unnamed.path)  # nothing has happened in it
                raise
            run = self._name_after(unnamed, job)
        jobs.set_comment(job, str(run.path))
        return JobFollower(run, job, view, first_words=f"submitted, its run directory is {run.path}")

    def _name_after(self, run: RunDirectory, job: str) -> RunDirectory:
        """Give the run directory the job's number. It is complete when the job sees it under that name."""
        named = RunDirectory(run.path.with_name(run.name + run_suffix(job)))
        now = time.time()
        write_opening(run, self._spec, RunDocument(named.name, started=now, source="Slurm", workdir=os.getcwd()))
        write_first_status(run, "queued", name=named.name)
        run.append(Stamped("", now, None, NodesAsked("Slurm")))
        run.write_document("job.json", {"job": job, "submitted_from": socket.gethostname()})
        (run.path / OUTPUT).symlink_to(os.path.join(os.getcwd(), f"slurm-{job}.out"))
        os.rename(run.path, named.path)
        return named
