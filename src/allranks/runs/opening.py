"""run.json: what a run is, written when it begins and where it changes hands (IO). No other module writes it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import allranks
from allranks.agent.processes import read_process
from allranks.settings import RunSpec
from allranks.settings.document import to_document
from allranks.settings.secrets import redact_argv

from .directory import RunDirectory
from .result import Document


@dataclass(frozen=True)
class Opening:
    """A run as it begins. `name`: the run's, where its directory is renamed later. `more`: fields of the engine."""

    spec: RunSpec
    uid: str
    nodes: Sequence[Document]
    source: str
    workdir: str
    started: float  # unix seconds
    controller: Document | None  # see `controller_identity`; None: another process will be it
    name: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    more: Document = field(default_factory=dict)


def write_opening(run: RunDirectory, opening: Opening) -> None:
    """Write run.json of a run that begins."""
    document = {
        "run": opening.name or run.name,
        "uid": opening.uid,
        "started": opening.started,
        "command": redact_argv(opening.spec.launch.command),
        "spec": to_document(opening.spec),
        "nodes": list(opening.nodes),
        "source": opening.source,
        "workdir": opening.workdir,
        "versions": {"allranks": allranks.__version__, **opening.versions},
        "controller": opening.controller,
    }
    run.write_document("run.json", {**document, **opening.more})


def write_first_status(run: RunDirectory, state: str, nodes: Sequence[Document] = (), name: str = "") -> None:
    """Write status.json until the controller, wherever it is, writes its own."""
    waiting = [{"name": n["name"], "index": n["index"], "state": "connecting", "ranks": []} for n in nodes]
    status = {
        "run": name or run.name,
        "state": state,
        "t": time.time(),
        "attempt": 0,
        "master": None,
        "world_size": None,
        "nodes": waiting,
    }
    run.write_document("status.json", status)


def take_control(run: RunDirectory) -> None:
    """Say in run.json that this process controls the run, or follows it, from now on."""
    document = run.read_document("run.json") or {}
    run.write_document("run.json", {**document, "controller": controller_identity()})


def write_nodes(run: RunDirectory, nodes: Sequence[Document]) -> None:
    """Say in run.json which nodes the run has, once they are known."""
    document = run.read_document("run.json") or {}
    run.write_document("run.json", {**document, "nodes": list(nodes)})


def controller_identity() -> Document:
    """Return host, pid and start time of this process: what `stop` and `attach` look for."""
    process = read_process(os.getpid())
    start_time = process.start if process is not None else 0
    return {"host": socket.gethostname(), "pid": os.getpid(), "start_time": start_time}
