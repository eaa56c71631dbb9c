"""Runs whose controller is node 0's `join`, in pods or on cloud machines: name, run directory, end of a stop (IO)."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from allranks.errors import NodeError
from allranks.exitcodes import CTRL_C, DONE, NODE_FAILED, PROGRAM_FAILED, TERMINATED
from allranks.plan.render.pod_spec import object_name
from allranks.protocol.codec import decode, encode
from allranks.protocol.jsontext import DecodeError
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Document, NamedNode, ResultDocument
from allranks.runs.opening import Opening, controller_identity, write_first_status, write_opening
from allranks.settings import RunSpec

from .following import FollowerView

LONGEST = 19  # of the name, so that the time of the run and four digits of chance still fit
Place = TypeVar("Place")


def name_of(spec: RunSpec, now: float) -> str:
    """Return the name at the engine: the run's, as short as it must be, with what tells it from others' there."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{object_name(spec.places.name)[:LONGEST].strip('-')}-{stamp}-{secrets.token_hex(2)}"


def create_run(spec: RunSpec, name: str, place: object, nodes: Sequence[str], now: float) -> RunDirectory:
    """Make a run directory as `run` makes it. `place`: the engine's record of where the run really is."""
    run = RunDirectory.create(Path(spec.places.runs_dir), spec.places.name, now)
    (run.path / "outputs").mkdir(mode=0o700, exist_ok=True)
    listed = [NamedNode(node, index, node, node_rank=index) for index, node in enumerate(nodes)]
    document: Document = encode(place)
    opening = Opening(
        spec,
        name,
        listed,
        str(document["engine"]),
        os.getcwd(),
        now,
        controller_identity(),
        more={"engine": document},
    )
    write_opening(run, opening)
    run.append_event({"t": time.time(), "event": "run-start", "run": run.name, "uid": name})
    write_first_status(run, "starting", listed)
    return run


def show_opening(run: RunDirectory, view: FollowerView, spec: RunSpec) -> None:
    """Show what run.json says of a run that begins."""
    document = encode(run.read_run())
    view.opening({**document, "directory": str(run.path), "launcher": spec.launch.launcher})


def read_place(run: RunDirectory, kind: type[Place]) -> Place:
    """Return the engine's record from run.json; raise NodeError where it is damaged."""
    try:
        return decode(kind, run.engine)
    except DecodeError as error:
        raise NodeError(f"{run.path}/run.json: engine: {error}") from None


def was_followed_here(run: RunDirectory) -> bool:
    """Return whether the run's last follower was a process of this host: then `controller_alive` knows its end."""
    controller = run.read_run().controller
    return controller is None or controller.host == socket.gethostname()


def is_failure(result: ResultDocument | None) -> bool:
    """Return whether a run that was stopped has ended in another way; None: the person has left it."""
    return result is not None and result.exit not in (DONE, CTRL_C, TERMINATED)


def as_stopped(result: ResultDocument, reason: str) -> ResultDocument:
    """Return the result of a run that was stopped from here: a failure that the stop made is none of the run's."""
    if result.exit not in (TERMINATED, NODE_FAILED, PROGRAM_FAILED):
        return result
    return replace(result, exit=CTRL_C if reason == "ctrl-c" else TERMINATED, verdict=None)
