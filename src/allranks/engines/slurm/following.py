"""Following a Slurm job: its way through the queue, then the run's events and output, until there is a result (IO)."""

from __future__ import annotations

import time
from dataclasses import replace

from allranks.diagnose.slurm_jobs import SlurmJob, is_hopeless, never_starts, waiting
from allranks.engines.following import Display, FollowedRun, OnCtrlC, show_opening
from allranks.exitcodes import CTRL_C, NODE_FAILED, TERMINATED
from allranks.findings import Verdict
from allranks.protocol.run_facts import Fact, JobProgress, RunStart, Stamped
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument
from allranks.runs.result import least_result
from allranks.runs.view import View

from . import jobs
from .ended import LATE, OUTPUT, conclude, has_begun

LOOK_EVERY = 1.0  # seconds between two questions to slurmctld; it grows while nothing changes
LOOK_AT_MOST = 15.0
SOON = 1.0  # where it shows the job's output, and no controller has begun
CAUSES_BY_SLURM = ("slurm-preempted-or-timeout", "node-network-down")
HOPELESS_LOOKS = 4  # at a reason that waiting does not end: slurmctld may have looked at the job in passing


class JobFollower(FollowedRun):
    """A job that another process controls; with an `offset` into its events, what is there already is not shown."""

    on_ctrl_c = OnCtrlC.ASK
    leaves_page = False  # the controller in the job does

    def __init__(self, run: RunDirectory, job: str, view: View, offset: int = 0, first_words: str = "") -> None:
        super().__init__(run, view)
        self.job = job
        self._number = job
        self.begun = offset > 0 and has_begun(run)
        self._display = Display(run, offset)
        self._first_words = first_words
        self._shown_states: set[str] = set()  # of the job's present state: its reasons to wait come and go
        self._state = ""
        self.ask_at = 0.0
        self.pause = LOOK_EVERY
        self._last: SlurmJob | None = None
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
        if now >= self.ask_at or (result is not None and _by_slurm(result)):
            self.ask(now)
        if result is not None and not self._starts_again(result):
            self._display.turn(self.view, self._on_event)
            return result
        if self.over_since is not None and now - self.over_since > self._patience():
            return self.run.read_result() or conclude(self.run, self._last, self.stopping)
        if self._hopeless_looks >= HOPELESS_LOOKS and self._last is not None and not self.stopping:
            return self._never_starts(self._last)
        return None

    def _say(self, message: str) -> None:
        self.view.event(Stamped("", time.time(), None, JobProgress(self._number, message)))

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
            self._note_job(jobs.look(self._number), now)
        except jobs.SlurmError as error:
            self._show_state(self._last, str(error))
        if self.run.has_ended:
            self.pause = LOOK_EVERY
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
            self.pause = min(LOOK_AT_MOST, self.pause * 1.3)
            return
        self._shown_states.add(line)
        self.pause = LOOK_EVERY
        if line and (job is None or not job.over):
            self._say(_lower(line))

    def _starts_again(self, result: ResultDocument) -> bool:
        """Slurm ended the attempt and starts the job again: there is more to come."""
        if not _by_slurm(result) or self.stopping or self._last is None:
            return False
        return not self._last.over

    def stop(self) -> None:
        """End the run. Once: ranks may save. Twice: now."""
        self._say("being cancelled" if self.stopping else "being stopped")
        try:
            end_job(self._number, orderly=not self.stopping)
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
            jobs.tell(self._number, name)
        except jobs.SlurmError as error:
            self._say(f"SIG{name} is not passed on: {error}")

    def finish(self, result: ResultDocument, reason: str) -> ResultDocument:
        """Return the result for who followed: a stop ends the controller by SIGTERM, also where Ctrl-C asked for it."""
        if reason == "ctrl-c" and result.exit == TERMINATED:
            return replace(result, exit=CTRL_C)
        return result


def _by_slurm(result: ResultDocument) -> bool:
    verdict = result.verdict
    return verdict is not None and (verdict.finding.check == "slurm" or verdict.cause in CAUSES_BY_SLURM)


def _state_line(job: SlurmJob | None) -> str:
    if job is None:
        return ""
    if job.waits:
        return f"{job.state} {waiting(job)}"
    return job.state


def _lower(line: str) -> str:
    state, _, reason = line.partition(" ")
    if reason and state.isupper():
        return f"{state.lower()}: {reason}"
    if line.isupper():
        return line.lower()
    return line


def end_job(job: str, orderly: bool) -> None:
    """Cancel a job that waits; in one that runs signal the controller, or cancel all of it where not `orderly`."""
    state = jobs.look(job)
    if state is None or state.over:
        return
    if state.waits or not orderly:
        jobs.cancel(job)
    else:
        jobs.tell(job)
