"""Runs whose controller is node 0's `join`, in pods or on cloud machines: name, run directory, end of a stop (IO)."""

from __future__ import annotations

import os
import secrets
import socket
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from allranks.errors import AllranksError, NodeError
from allranks.exitcodes import CTRL_C, DONE, NODE_FAILED, PROGRAM_FAILED, TERMINATED, code_if
from allranks.plan.environment import forwarded
from allranks.plan.render.pod_spec import object_name
from allranks.protocol.codec import decode, encode
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.run_facts import JobProgress, NodesAsked, PlainNote, RunStart, Stamped
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ORPHANED, Document, Left, NodeEntry, ResultDocument, RunDocument
from allranks.runs.opening import controller_identity, write_first_status, write_opening
from allranks.runs.replay import Replay
from allranks.runs.result import new_run, write_result
from allranks.runs.view import View
from allranks.settings import RunSpec

from . import Engine, Stopped
from .following import FollowedRun

LONGEST = 19  # of the name, so that the time of the run and four digits of chance still fit
Place = TypeVar("Place")


def name_of(spec: RunSpec, now: float) -> str:
    """Return the name at the engine: the run's, as short as it must be, with what tells it from others' there."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{object_name(spec.places.name)[:LONGEST].strip('-')}-{stamp}-{secrets.token_hex(2)}"


def create_run(spec: RunSpec, name: str, place: object, nodes: Sequence[str], now: float) -> RunDirectory:
    """Make a run directory as `run` makes it. `place`: the engine's record of where the run really is."""
    listed = tuple(NodeEntry(node, index, node, node_rank=index) for index, node in enumerate(nodes))
    document: Document = encode(place)
    known = RunDocument(
        uid=name,
        started=now,
        nodes=listed,
        source=str(document["engine"]),
        workdir=os.getcwd(),
        controller=controller_identity(),
        engine=document,
    )
    with new_run(spec.places, now) as run:
        write_opening(run, spec, known)
        run.append(Stamped("", time.time(), None, RunStart(run.name, name)))
        run.append(Stamped("", now, None, NodesAsked(known.source)))
        write_first_status(run, "starting", listed)
    return run


def hidden_values(spec: RunSpec, names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of hidden variables as ranks get them: --env goes before what the caller's environment has."""
    values = {**forwarded(environ, spec.launch.forward), **spec.launch.env}
    return {name: values[name] for name in names if name in values}


def read_place(run: RunDirectory, kind: type[Place]) -> Place:
    """Return the engine's record from run.json; raise NodeError where it is damaged."""
    try:
        return decode(kind, run.engine)
    except DecodeError as error:
        raise NodeError(f"{run.path}/run.json: engine: {error}") from None


class RemoteRun(FollowedRun):
    """A run of which node 0 tells in JSON lines. This process writes its end, and removes what it made elsewhere."""

    def __init__(self, run: RunDirectory, view: View, engine: str, name: str) -> None:
        super().__init__(run, view)
        self.name = name
        self.replay = Replay(run, view)
        self._engine = engine
        self._lost_signals: set[str] = set()

    @abstractmethod
    def remove(self) -> Left:
        """Remove what the run made; return what could not be removed, by object."""

    @abstractmethod
    def hang_up(self) -> None:
        """End what reads node 0's lines."""

    def show_in(self, view: View) -> None:
        """Show what comes in another view from now on."""
        super().show_in(view)
        self.replay.view = view

    def say(self, message: str) -> None:
        """Show how the engine's job gets on, and keep it as an event."""
        stamped = Stamped("", time.time(), None, JobProgress(self.name, message))
        self.run.append(stamped)
        self.view.event(stamped)

    def pass_signal(self, name: str) -> None:
        """Say once that the ranks take no signals from here."""
        if name not in self._lost_signals:
            self._lost_signals.add(name)
            message = f"SIG{name} is not passed on: {self._engine} runs take no signals from here"
            self.view.event(Stamped("", time.time(), None, PlainNote(message)))

    def finish(self, result: ResultDocument, reason: str) -> ResultDocument:
        """Remove what the run made, and write the result with what is left of it."""
        left = self.remove()
        if self.stopping and result.exit in (TERMINATED, NODE_FAILED, PROGRAM_FAILED):  # the stop made the failure
            result = replace(result, exit=CTRL_C if reason == "ctrl-c" else TERMINATED, verdict=None)
        return self.write(result, left)

    def write(self, result: ResultDocument, left: Left) -> ResultDocument:
        """Write the result, with what is left elsewhere, and return it."""
        self.replay.close()
        self.hang_up()
        return write_result(self.run, replace(result, left=left), self.stopping)


class RemoteEngine(Engine):
    """An engine whose runs are followed by a process here, and go on without one."""

    name: str

    @abstractmethod
    def follow(self, run: RunDirectory, view: View) -> RemoteRun:
        """Follow the run from here on."""

    @abstractmethod
    def whereabouts(self, run: RunDirectory) -> str:
        """Say in a line what there is of a run. Raise AllranksError where the engine does not answer."""

    @abstractmethod
    def settle(self, run: RunDirectory) -> None:
        """Write the end of a run that no process follows, if it is over."""

    def condition(self, run: RunDirectory, state: str) -> Document:
        """Return what the engine says of a run that no process follows, in a line, or why it says nothing."""
        if state != ORPHANED:
            return {}
        try:
            return {"engine": self.whereabouts(run)}
        except AllranksError as error:
            return {"engine_error": str(error)}

    def stop(self, run: RunDirectory, grace: float, view: View) -> Stopped:
        """End the run, remove what it made, and wait until it is over."""
        result = self.follow(run, view).follow(stop_first=True)
        has_failed = result is not None and result.exit not in (DONE, CTRL_C, TERMINATED)
        return Stopped(run.name, "engine", code_if(has_failed, NODE_FAILED))

    def stop_notice(self, run: RunDirectory, grace: float) -> str:
        """Return the sentence that `stop` begins with."""
        return f"stopping {run.name} in {self.name}: ranks have {grace:g} s to save"

    def finish(self, run: RunDirectory, now: float) -> None:
        """Write the end of a run that is over and has no result, where its last follower was a process of this host."""
        controller = run.read_run().controller
        if (controller is None or controller.host == socket.gethostname()) and not run.controller_alive():
            self.settle(run)
