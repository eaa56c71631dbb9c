"""Following a run that goes on elsewhere: one loop for every engine, until it is over or the person leaves (IO)."""

from __future__ import annotations

import enum
import os
import select
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace

from allranks.agent.processes import USER_SIGNALS
from allranks.errors import Interrupted, NodeError, UsageError
from allranks.exitcodes import CTRL_C, TERMINATED
from allranks.findings import Finding, Verdict
from allranks.protocol.run_facts import Fact, Stamped
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument, RunOpened, silent_after
from allranks.runs.reading import LogReader
from allranks.runs.view import View

from . import engine_of
from .signals import Signals

PAUSE = 0.2
UNKNOWN_CONFIDENCE = 0.4
QUESTION = "\nCtrl-C: [c]ancel the job, or [d]etach (it goes on)? "
QUESTION_OF_CTRL_Z = "\nCtrl-Z: [s]top the run, [d]etach (it goes on without this terminal), or [c]ontinue? "


class OnCtrlC(enum.Enum):
    """What Ctrl-C does to a run that is followed, in a sentence for who follows it."""

    STOP = "Ctrl-C ends it"
    ASK = "Ctrl-C asks whether it shall end"
    LEAVE = "Ctrl-C leaves it, and it goes on"


class StartedRun(ABC):
    """A run that has begun, as the process that started it, or follows it, has it. `run`: None on another machine."""

    job: str | None = None  # of Slurm, which needs no process here to go on
    leaves_page = True  # this process writes the run's end, and so its page
    awaits_ranks = False  # `--detach` returns once ranks have started; else at once

    def __init__(self, run: RunDirectory | None, view: View) -> None:
        self.run = run
        self.view = view

    def show_in(self, view: View) -> None:
        """Show what comes in another view from now on."""
        self.view = view

    @abstractmethod
    def follow(self, asks: bool) -> ResultDocument | None:
        """Return the result once the run is over; None where it goes on without this process.

        `asks`: a person at the terminal may be asked.
        """

    def linger(self, result: ResultDocument) -> None:
        """Stay as long as the engine needs this process once the end was shown."""
        return


class FollowedRun(StartedRun):
    """A run that goes on elsewhere, as the process that follows it has it; each engine has its own.

    `stopping`: the engine has heard that the run shall end.
    """

    run: RunDirectory
    on_ctrl_c = OnCtrlC.STOP
    asks_at_ctrl_z = False

    def __init__(self, run: RunDirectory, view: View) -> None:
        super().__init__(run, view)
        self.stopping = False

    @abstractmethod
    def turn(self) -> ResultDocument | None:
        """Show what is new. Return the result once the run is over; called a few times a second."""

    @abstractmethod
    def stop(self) -> None:
        """End the run. Once: ranks may save. Twice: now."""

    @abstractmethod
    def pass_signal(self, name: str) -> None:
        """Pass USR1 or USR2 on to the ranks, or show why that is not possible."""

    def finish(self, result: ResultDocument, reason: str) -> ResultDocument:
        """Return the result as it is shown: a controller elsewhere has had SIGTERM, also where Ctrl-C ended the run.

        An engine without a controller writes it, and removes what the run made. `reason`: why the run was stopped from
        here, `ctrl-c` or `stop`; empty where it was not.
        """
        if reason == "ctrl-c" and result.exit == TERMINATED:
            return replace(result, exit=CTRL_C)
        return result

    def follow(self, asks: bool = True, stop_first: bool = False) -> ResultDocument | None:
        """Return the result once the run is over; None where the person has left, or lost the terminal."""
        signals = Signals(self.asks_at_ctrl_z)
        reason = ""
        try:
            if stop_first:
                self.stop()
            while True:
                result = self.turn()
                self.view.tick(time.time())
                if result is not None:
                    return self.finish(result, reason)
                request = read_request(signals, self)
                if request == "leave":
                    return None
                if request is not None:
                    self.stop()
                    if self.stopping and not reason:
                        reason = request
                for name in signals.take_for_the_ranks():
                    self.pass_signal(name)
                time.sleep(PAUSE)
        finally:
            signals.restore()


def show_opening(run: RunDirectory, view: View) -> None:
    """Show what run.json says of a run that begins, once it names the nodes."""
    document = run.read_run()
    if document.nodes:
        place, launcher = str(run.path), document.launcher
        view.opening(RunOpened(run.name, place, document.command, launcher, document.source, document.nodes))


def follow_run(run: RunDirectory, view: View, take_over: bool) -> StartedRun:
    """Follow a run that another process has started, or take it over. Raise UsageError where that is not possible."""
    if not take_over and _is_led_elsewhere(run, view):
        return WatchedFromAfar(run, view)
    if run.job is None and run.controller_alive():
        if not take_over:
            return Watched(run, view)
        if run.engine:
            raise UsageError(
                f"{run.name} runs in {run.engine['engine']}, and the process that follows it cannot be replaced\n"
                f"hint: allranks attach {run.name}"
            )
    return engine_of(run).follow(run, view)


def _is_led_elsewhere(run: RunDirectory, view: View) -> bool:
    """Whether a controller on another machine writes to a disk of both; its next word is waited for."""
    status = run.read_status()
    document = run.read_run()
    if not run.is_written_elsewhere(document, status):
        return False
    if document.controller is not None:
        view.say("note", f"{run.name} has its controller on {document.controller.host}: waiting for its next word")
    deadline = time.monotonic() + silent_after(document)
    while run.read_status().t == status.t and not run.has_ended:
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE)
    return True


def read_request(signals: Signals, followed: FollowedRun) -> str | None:
    """Return what the person asks for: ctrl-c or stop (both end the run), leave, or None."""
    request = signals.take()
    if request == "ctrl-z":
        return _ask(signals, followed.view, QUESTION_OF_CTRL_Z, {"s": "stop", "d": "leave"}, None)
    if request == "stop" and followed.on_ctrl_c is OnCtrlC.LEAVE:
        raise Interrupted("ended by SIGTERM. The run goes on", TERMINATED)
    if request != "ctrl-c" or followed.on_ctrl_c is OnCtrlC.STOP:
        return request
    if followed.on_ctrl_c is OnCtrlC.LEAVE:
        return "leave"
    return _ask(signals, followed.view, QUESTION, {"c": "ctrl-c", "d": "leave"}, "ctrl-c")


def _ask(
    signals: Signals, view: View, question: str, answers: Mapping[str, str], without_terminal: str | None
) -> str | None:
    """Ask what a key means, and return what its answer asks for. A signal that comes meanwhile is the answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return without_terminal
    view.pause()
    sys.stderr.write(question)
    sys.stderr.flush()
    request = None
    while request is None and not select.select([sys.stdin], [], [], PAUSE)[0]:
        request = signals.take()
    if request is None:
        answer = sys.stdin.readline().strip().lower()[:1]
        request = answers.get(answer)
    view.resume()
    return request


def verdict_on(finding: Finding | None, confidence: float) -> Verdict | None:
    """Return the verdict whose cause is this finding; an unknown one takes little confidence. None without one."""
    if finding is None:
        return None
    if finding.id == "unknown":
        confidence = UNKNOWN_CONFIDENCE
    return Verdict(finding, finding.id, confidence)


class Display:
    """Shows what comes into a run directory: events from `offset` on, output and states.

    With an offset, output that is there already is not shown again.
    """

    def __init__(self, run: RunDirectory, offset: int) -> None:
        self._run = run
        self._offset = offset
        self.reader = LogReader(run)
        self._roles = {node.name: node.role for node in run.read_run().nodes if node.role}
        if offset:
            self.reader.skip_to_end()

    def turn(self, view: View, on_event: Callable[[Stamped[Fact]], None] = lambda event: None) -> None:
        """Show what is new in a view; `on_event` gets each event before it is shown."""
        now = time.time()
        events, self._offset = self._run.read_facts(self._offset, all_roles=True)
        for event in events:
            on_event(event)
            view.event(event)
        for node, rank, data in self.reader.fresh():
            view.output(f"{self._roles.get(node, '')} {node}".lstrip(), rank, data, now)
        status = self._run.read_status()
        if status.nodes:
            view.status(status, now)


class Watched(FollowedRun):
    """A run whose controller is another process of this host: it writes the end, and Ctrl-C here leaves it alone."""

    on_ctrl_c = OnCtrlC.LEAVE
    leaves_page = False

    def __init__(self, run: RunDirectory, view: View) -> None:
        super().__init__(run, view)
        self._display = Display(run, run.read_lines()[1])
        self._display.reader.skip_to_end()

    def turn(self) -> ResultDocument | None:
        """Show what is new; the result once it is there. Raise NodeError where the controller died without one."""
        self._display.turn(self.view)
        alive = self.is_alive()  # asked first: a controller writes the result, then it ends
        result = self.run.read_result()
        if result is not None:
            self._display.turn(self.view)
        elif not alive:
            raise NodeError(f"the controller of {self.run.name} died. hint: allranks attach {self.run.name}")
        return result

    def is_alive(self) -> bool:
        """Return whether the run has a controller."""
        return self.run.controller_alive()

    def stop(self) -> None:
        """Nothing: `allranks stop` ends it."""

    def pass_signal(self, name: str) -> None:
        """Nothing: signals of the follower are not the run's."""


class WatchedFromAfar(Watched):
    """A run whose controller is on another machine: it lives as long as it writes, by the clock of this one."""

    def __init__(self, run: RunDirectory, view: View) -> None:
        super().__init__(run, view)
        self._silent_after = silent_after(run.read_run())
        self._written_t = 0.0
        self._heard_at = 0.0

    def is_alive(self) -> bool:
        """Return whether its last word is young."""
        written_t = self.run.read_status().t
        if written_t != self._written_t:
            self._written_t = written_t
            self._heard_at = time.monotonic()
        return time.monotonic() - self._heard_at <= self._silent_after


class Launched(Watched):
    """A run whose controller is a daemon that this process has just started: as if it were this process.

    Ctrl-C ends the run. A terminal that goes away leaves it alone.
    """

    on_ctrl_c = OnCtrlC.STOP
    asks_at_ctrl_z = True

    def __init__(self, run: RunDirectory, view: View, daemon: int) -> None:
        super().__init__(run, view)
        self._display = Display(run, 0)
        self._daemon = daemon
        self._has_ended = False

    def is_alive(self) -> bool:
        """Return whether the daemon, or who has taken the run over from it, goes on."""
        if not self._has_ended:
            self._has_ended = os.waitpid(self._daemon, os.WNOHANG)[0] != 0
        return not self._has_ended or self.run.controller_alive()

    def stop(self) -> None:
        """End the run as `allranks stop` does."""
        self._tell(signal.SIGTERM)
        self.stopping = True

    def pass_signal(self, name: str) -> None:
        """Pass USR1 or USR2 on to the controller, which gives it to the ranks."""
        self._tell(USER_SIGNALS[name])

    def _tell(self, number: int) -> None:
        if self.is_alive() and not self._has_ended:
            os.kill(self._daemon, number)
