"""run.json and status.json: what a run is, written when it begins and where it changes hands, and how it gets on (IO).

No other module writes them.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import allranks
from allranks.agent.processes import read_process
from allranks.cluster import Node
from allranks.protocol.codec import encode
from allranks.protocol.frames import PROTOCOL
from allranks.settings import RunSpec
from allranks.settings.document import to_document
from allranks.settings.roles import main_role
from allranks.settings.secrets import redact_argv

from .directory import RunDirectory
from .documents import ControllerRecord, Document, NodeEntry, NodeStatus, RunDocument, StatusDocument
from .known_directories import note_runs_directory


def write_opening(run: RunDirectory, spec: RunSpec, known: RunDocument) -> None:
    """Write run.json of a run that begins, and note the directory that has it for `allranks ps --all`.

    `known` has what the settings do not say. Its `run` is the directory's name unless that is changed later.
    """
    document = replace(
        known,
        run=known.run or run.name,
        command=tuple(redact_argv(main_role(spec).command)),
        spec=to_document(spec),
        versions={"allranks": allranks.__version__, "protocol": str(PROTOCOL), **known.versions},
    )
    run.write_document("run.json", encode(document))
    run.keep_room()
    note_runs_directory(run.path.parent, os.environ)


def write_first_status(run: RunDirectory, state: str, nodes: Sequence[NodeEntry] = (), name: str = "") -> None:
    """Write status.json until the controller, wherever it is, writes its own."""
    waiting = tuple(NodeStatus(node.name, node.index, state="connecting") for node in nodes)
    write_status(run, StatusDocument(name or run.name, state, time.time(), nodes=waiting))


def write_status(run: RunDirectory, status: StatusDocument) -> None:
    """Write status.json, each second: but for warnings it holds names, words of ours and numbers."""
    run.write_document("status.json", encode(status), has_texts=any(node.warnings for node in status.nodes))


def write_last_status(run: RunDirectory, state: str, last: StatusDocument | None) -> None:
    """Write the state in which a run has ended. Without `last` the rest of status.json stays as it is."""
    status: Document
    if last is not None:
        status = encode(last)
    else:
        status = run.read_document("status.json") or {"run": run.name, "t": time.time(), "nodes": []}
    run.write_document("status.json", {**status, "state": state})


def take_control(run: RunDirectory) -> None:
    """Say in run.json that this process controls the run, or follows it, from now on."""
    _change(run, "controller", controller_identity())


def write_nodes(run: RunDirectory, nodes: Sequence[NodeEntry]) -> None:
    """Say in run.json which nodes the run has, once they are known."""
    _change(run, "nodes", nodes)


def change_nodes(run: RunDirectory, change: Callable[[NodeEntry], NodeEntry]) -> None:
    """Change each node of run.json; one that is damaged stays as it is."""
    if run.read_document("run.json") is not None:
        write_nodes(run, [change(entry) for entry in run.read_run().nodes])


def add_node(run: RunDirectory, entry: NodeEntry) -> None:
    """Add a node to run.json."""
    write_nodes(run, [*run.read_run().nodes, entry])


def node_entry(node: Node, node_rank: int | None, role: str = "") -> NodeEntry:
    """Describe a node as run.json has it; `node_rank` is None for one without ranks."""
    return NodeEntry(**vars(node), node_rank=node_rank, role=role)


def reachable_nodes(entries: Iterable[NodeEntry]) -> list[Node]:
    """Give the nodes of run.json that have an address."""
    return [
        Node(entry.index, entry.name, entry.host, entry.user, entry.port, entry.slots, bool(entry.is_local))
        for entry in entries
        if entry.index is not None and entry.host is not None
    ]


def read_from_here(run: RunDirectory) -> RunDocument:
    """Read run.json as this machine sees it: the machine of a controller elsewhere is another one."""
    document = run.read_run()
    controller = document.controller
    here = platform.node()
    if controller is None or controller.host == here:
        return document
    return replace(document, nodes=tuple(replace(entry, is_local=entry.host == here) for entry in document.nodes))


def _change(run: RunDirectory, name: str, value: object) -> None:
    """Change a field; the others stay, also those that this version does not know."""
    run.write_document("run.json", {**(run.read_document("run.json") or {}), name: encode(value)})


def controller_identity() -> ControllerRecord:
    """Return host, pid and start time of this process: what `stop` and `attach` look for."""
    process = read_process(os.getpid())
    start_time = process.start if process is not None else 0
    return ControllerRecord(socket.gethostname(), os.getpid(), start_time)
