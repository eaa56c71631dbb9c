"""Following a run that goes on elsewhere: one loop for every engine, until it is over or the person leaves (IO)."""

from __future__ import annotations

import enum
import select
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from allranks.errors import Interrupted, NodeError, UsageError
from allranks.exitcodes import TERMINATED
from allranks.findings import Finding, Verdict
from allranks.protocol.run_facts import Fact, Stamped
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument, RunOpened
from allranks.runs.reading import LogReader
from allranks.runs.view import View

from . import engine_of
from .signals import Signals

PAUSE = 0.2
UNKNOWN_CONFIDENCE = 0.4
QUESTION = "\nCtrl-C: [c]ancel the job, or [d]etach (it goes on)? "


class OnCtrlC(enum.Enum):
    """What Ctrl-C does to a run that is followed, in a sentence for who follows it."""

    STOP = "Ctrl-C ends it"
    ASK = "Ctrl-C asks whether it shall end"
    LEAVE = "Ctrl-C leaves it, and it goes on"


class StartedRun(Protocol):
    """A run that has begun, as the process that started it, or follows it, has it."""

    @property
    def run(self) -> RunDirectory | None:
        """Return the run directory; None where another machine has it."""

    job: str | None  # of Slurm, which needs no process here to go on
    leaves_page: bool  # this process writes the run's end, and so its page
    awaits_ranks: bool  # `--detach` returns once ranks have started; else at once

    def show_in(self, view: View) -> None:
        """Show what comes in another view from now on."""

    def follow(self, asks: bool) -> ResultDocument | None:
        """Return the result once the run is over; None where it goes on without this process.

        `asks`: a person at the terminal may be asked.
        """

    def linger(self, result: ResultDocument) -> None:
        """Stay as long as the engine needs this process once the end was shown."""


class FollowedRun(ABC):
    """A run that goes on elsewhere, as the process that follows it has it; each engine has its own.

    `stopping`: the engine has heard that the run shall end.
    """

    job: str | None = None
    leaves_page = True
    awaits_ranks = False
    on_ctrl_c = OnCtrlC.STOP

    def __init__(self, run: RunDirectory, view: View) -> None:
        self.run = run
        self.view = view
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

    @abstractmethod
    def finish(self, result: ResultDocument, reason: str) -> ResultDocument:
        """Return the result as it is shown. An engine without a controller writes it, and removes what the run made.

        `reason`: why the run was stopped from here, `ctrl-c` or `stop`; empty where it was not.
        """

    def show_in(self, view: View) -> None:
        """Show what comes in another view from now on."""
        self.view = view

    def follow(self, asks: bool) -> ResultDocument | None:
        """Return the result once the run is over; None where the person has left. `_ask` knows whether it may."""
        return follow(self)

    def linger(self, result: ResultDocument) -> None:
        """Return at once: the controller is another process."""
        return


def show_opening(run: RunDirectory, view: View) -> None:
    """Show what run.json says of a run that begins, once it names the nodes."""
    document = run.read_run()
    if document.nodes:
        place, launcher = str(run.path), document.launcher
        view.opening(RunOpened(run.name, place, document.command, launcher, document.source, document.nodes))


def follow_run(run: RunDirectory, view: View, take_over: bool) -> StartedRun:
    """Follow a run that another process has started, or take it over. Raise UsageError where that is not possible."""
    if run.job is None and run.controller_alive():
        if not take_over:
            return Watched(run, view)
        if run.engine:
            raise UsageError(
                f"{run.name} runs in {run.engine['engine']}, and the process that follows it cannot be replaced\n"
                f"hint: allranks attach {run.name}"
            )
    return engine_of(run).follow(run, view)


def follow(followed: FollowedRun, stop_first: bool = False) -> ResultDocument | None:
    """Return the result once the run is over; None where the person has left, or lost the terminal."""
    signals = Signals()
    reason = ""
    try:
        if stop_first:
            followed.stop()
        while True:
            result = followed.turn()
            followed.view.tick(time.time())
            if result is not None:
                return followed.finish(result, reason)
            request = read_request(signals, followed)
            if request == "leave":
                return None
            if request is not None:
                followed.stop()
                if followed.stopping and not reason:
                    reason = request
            for name in signals.take_for_the_ranks():
                followed.pass_signal(name)
            time.sleep(PAUSE)
    finally:
        signals.restore()


def read_request(signals: Signals, followed: FollowedRun) -> str | None:
    """Return what the person asks for: ctrl-c or stop (both end the run), leave, or None."""
    request = signals.take()
    if request == "stop" and followed.on_ctrl_c is OnCtrlC.LEAVE:
        raise Interrupted("ended by SIGTERM. The run goes on", TERMINATED)
    if request != "ctrl-c" or followed.on_ctrl_c is OnCtrlC.STOP:
        return request
    if followed.on_ctrl_c is OnCtrlC.LEAVE:
        return "leave"
    return _ask(signals, followed.view)


def _ask(signals: Signals, view: View) -> str | None:
    """Ask what Ctrl-C means; without a terminal it ends the run. A signal that comes meanwhile is the answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "ctrl-c"
    view.pause()
    sys.stderr.write(QUESTION)
    sys.stderr.flush()
    request = None
    while request is None and not select.select([sys.stdin], [], [], PAUSE)[0]:
        request = signals.take()
    if request is None:
        answer = sys.stdin.readline().strip().lower()[:1]
        request = {"c": "ctrl-c", "d": "leave"}.get(answer)
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
        alive = self.run.controller_alive()  # asked first: a controller writes the result, then it ends
        result = self.run.read_result()
        if result is not None:
            self._display.turn(self.view)
        elif not alive:
            raise NodeError(f"the controller of {self.run.name} died. hint: allranks attach {self.run.name}")
        return result

    def stop(self) -> None:
        """Nothing: `allranks stop` ends it."""

    def pass_signal(self, name: str) -> None:
        """Nothing: signals of the follower are not the run's."""

    def finish(self, result: ResultDocument, reason: str) -> ResultDocument:
        """Return the result as the controller wrote it."""
        return result
