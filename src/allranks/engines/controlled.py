"""A run whose controller is this process: on named hosts, on this machine, or in the allocation that we are in (IO)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import termios
import time
import tty
from typing import Any

from allranks.agent.files import open_left
from allranks.cluster import Cluster, Node
from allranks.gang import session as sessions
from allranks.gang.matching import require_patterns
from allranks.gang.session import Session
from allranks.gang.transport import NodeReach
from allranks.preflight.pasted_figures import refuse_contradictions
from allranks.protocol.run_facts import PlainNote, Stamped
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import NodeEntry, OpenedRole, ResultDocument, RunOpened
from allranks.runs.result import over_when_interrupted
from allranks.runs.view import View
from allranks.settings.layers import Resolved
from allranks.settings.secrets import redact_argv
from allranks.unpacked import own_command

from . import reach_nodes
from .dry_run import describe
from .following import QUESTION_OF_CTRL_Z, StartedRun, Watched
from .orphans import end_dead_runs
from .reachable_nodes import find_cluster


class ControlledLaunch:
    """A gang on nodes that this process reaches directly."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._cluster = find_cluster(resolved.spec, spares=resolved.spec.recovery.spares)

    def describe(self, as_json: bool) -> str:
        """Return each node's commands and environments. Raise UsageError where the checks of a run would refuse it."""
        refuse_contradictions(self._resolved.spec, self._cluster)
        return describe(self._resolved.spec, self._cluster, as_json)

    def start(self, view: View) -> ControlledRun:
        """Make the run directory and the session; its ranks start once the run is followed."""
        spec = self._resolved.spec
        if spec.preflight.end_orphans:
            end_dead_runs(spec, self._cluster)
        return begin(self._resolved, self._cluster, reach_nodes(spec, self._cluster), view)


def begin(resolved: Resolved, cluster: Cluster, reach: NodeReach, view: View) -> ControlledRun:
    """Make the run directory and the session of a run on these nodes, and show what begins."""
    require_patterns(resolved.spec)
    size = resolved.expected_world_size
    session = sessions.create(resolved.spec, cluster, reach, os.environ, os.getcwd(), lambda: view, size)
    with over_when_interrupted(session.run_dir):
        view.opening(opening(session))
        for sentence in cluster.avoided:
            session.say_note(sentence)
        reach.begin(session)
    return ControlledRun(session, view)


def opening(session: Session) -> RunOpened:
    """Return what a view opens with."""
    cluster = session.cluster
    sessions = session.of_roles
    roles = [
        OpenedRole(
            one.context.role.name,
            tuple(node.name for node in one.cluster.nodes),
            tuple(redact_argv(one.spec.launch.command)),
            one.context.role.after,
        )
        for one in sessions
    ]
    return RunOpened(
        session.context.run,
        str(session.run_dir.path),
        tuple(redact_argv(session.spec.launch.command)),
        session.spec.launch.launcher,
        cluster.source,
        tuple(_entry(node) for one in sessions for node in one.cluster.nodes),
        tuple(map(_entry, cluster.spares)),
        session.context.handed_over.sentence,
        tuple(roles) if session.others else (),
    )


def _entry(node: Node) -> NodeEntry:
    return NodeEntry(node.name, host=node.host, slots=node.slots)


class ControlledRun(StartedRun):
    """A run in the hands of this process. Its ranks start when it is followed."""

    run: RunDirectory
    awaits_ranks = True

    def __init__(self, session: Session, view: View) -> None:
        super().__init__(session.run_dir, view)
        self.session = session

    def show_in(self, view: View) -> None:
        """Show what comes in another view from now on."""
        super().show_in(view)
        self.session.take_view(view)

    def follow(self, asks: bool) -> ResultDocument | None:
        """Control the run until it is over; None where a daemon of this terminal's has taken it over.

        Where another's command has taken it over, it is followed to its end: exit 0 says that the program has ended.
        """
        question = KeyQuestion()
        try:
            result = self.session.run(question.ask if asks else None)
        finally:
            question.close()
            self.session.reach.end()
        if not self.session.controller.replaced:
            return result
        if self.session.handed_over:
            return None
        self.leaves_page = False  # the controller does
        return Watched(self.run, self.view).follow()

    def linger(self, result: ResultDocument) -> None:
        """Stay as long as the engine needs this process after the end."""
        if result.verdict is not None:
            self.session.reach.linger(result.verdict.cause or "")


def take_over(run: RunDirectory, view: View) -> ControlledRun:
    """Become the controller of a run, in the place of one that has died or lets go."""
    view.event(Stamped("", time.time(), None, PlainNote(f"taking over {run.name}")))
    session = sessions.adopt(run, view, reach_nodes)
    session.reach.begin(session)
    return ControlledRun(session, view)


def end_without_controller(run: RunDirectory, grace: float, view: View) -> list[str]:
    """End a run through the agents on its nodes; return the nodes that were not reached. `grace`: seconds."""
    session = sessions.adopt(run, view, reach_nodes)
    session.spec = session.spec.changed(stop_grace=grace)
    session.run(stop_first="stop")
    return [node.name for node in session.controller.roster.nodes.values() if node.gone]


class KeyQuestion:
    """The question of one run. While it is open the terminal gives single keys, without echo; `close` ends that."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None  # the terminal's settings, while the question is open

    def ask(self, session: Session) -> None:
        """Ask for one key, again where the question is open; without a terminal a stop signal is not heeded."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return
        fd = sys.stdin.fileno()
        if self._before is None:
            self._before = termios.tcgetattr(fd)
        session.view.pause()
        sys.stderr.write(QUESTION_OF_CTRL_Z)
        sys.stderr.flush()
        tty.setcbreak(fd, termios.TCSADRAIN)
        asyncio.get_running_loop().add_reader(fd, self._take, session)

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._before is not None:
            with contextlib.suppress(OSError, ValueError, termios.error):  # the terminal has been closed
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)
            self._before = None

    def _take(self, session: Session) -> None:
        fd = sys.stdin.fileno()
        asyncio.get_running_loop().remove_reader(fd)
        key = ""
        with contextlib.suppress(OSError):  # the terminal has been closed
            key = os.read(fd, 1).decode("ascii", "replace").lower()
        self.close()
        sys.stderr.write(key + "\n")
        session.view.resume()
        if key == "s":
            session.stop_all("ctrl-z", session.spec.limits.stop_grace)
        elif key == "d" and session.others:
            session.say_note("a run with roles cannot leave its terminal later on: start it with --detach")
        elif key == "d":
            hand_over(session)


def hand_over(session: Session) -> None:
    """Start a daemon that takes the run over; this controller ends when it is replaced."""
    session.handed_over = True
    path = str(session.run_dir.path)
    log = open_left(str(session.run_dir.path / "controller.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open(log, "ab") as out:
        subprocess.Popen(
            [*own_command(), "attach", "--take-over", path],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
