"""Questions to the controller of a run that goes on, from other terminals of its machine: what they say, and how (IO).

The controller listens at a Unix socket that has a name and no file (unix(7), abstract), and answers processes of its
own user alone (gang/questions.py).
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import struct
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from allranks.errors import NodeError, UsageError
from allranks.protocol.codec import Vocabulary, decode, omit_empty
from allranks.protocol.jsontext import DecodeError, JsonObject, read_object, write_json
from allranks.protocol.orders import Ranks

from .directory import RunDirectory
from .documents import ControllerRecord, StatusDocument

PEER = struct.Struct("3i")  # SO_PEERCRED (unix(7)): pid, uid, gid
PART_LIMIT = 8 << 20  # bytes of a request: the names of files that are wanted
ANSWER_LIMIT = 1 << 30  # bytes: the stacks of all ranks
REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 21.0  # for the nodes: an agent gives its own sampling 20
TRACE_SECONDS = 155.0  # for the nodes: an agent gives the traces 150
QUESTIONS_SOCKET = "-questions"


class StacksQuestion(NamedTuple):
    """What ranks do now: these alone, and of these roles alone, where any are named.

    `native`: with the frames below Python. `dump`: recorders and stacks are kept in the run directory too.
    """

    ranks: Ranks = ()
    roles: tuple[str, ...] = ()
    native: bool = False
    dump: bool = False


class NodeStacks(NamedTuple):
    """What a node has answered: stack samples by rank (agent/sample.py), or why there are none."""

    node: str
    role: str = ""
    ranks: Mapping[int, JsonObject] = {}
    error: str = ""


class StacksAnswer(NamedTuple):
    """What the nodes have answered, and how the run stood then; `failed`: why nothing could be asked."""

    nodes: tuple[NodeStacks, ...] = ()
    status: StatusDocument = StatusDocument()
    failed: str = ""


class ProfileQuestion(NamedTuple):
    """Profile these ranks, of these roles, for so many steps: where no rank is named, the first that runs.

    `limit`: the seconds after which it ends, whatever the steps."""

    ranks: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()
    steps: int = 1
    limit: float = 60.0


@omit_empty("role", "note", "error")
class ProfiledRank(NamedTuple):
    """A rank that was profiled: for how long, and from which step to which its run was seen to go; null: none was seen.

    `stalled`: the seconds for which the program's Python stood still while the trace was made. `trace` is its file,
    `size` the file's bytes. `note`: what has ended the profile early. `error`: why its trace is missing."""

    rank: int
    node: str
    seconds: float = 0.0
    first_step: int | None = None
    last_step: int | None = None
    stalled: float = 0.0
    trace: str = ""
    size: int = 0
    role: str = ""
    note: str = ""
    error: str = ""


class ProfileAnswer(NamedTuple):
    """What came of a profile; `failed`: why nothing could be asked."""

    ranks: tuple[ProfiledRank, ...] = ()
    failed: str = ""


Question = StacksQuestion | ProfileQuestion
QUESTIONS: Vocabulary[Question] = Vocabulary("ask", {"stacks": StacksQuestion, "profile": ProfileQuestion})
Answer = TypeVar("Answer", StacksAnswer, ProfileAnswer)


def socket_name(uid: str, purpose: str = "") -> str:
    """Return the name of a socket of the run with this uid; without a purpose it is that of a join's coordinator."""
    return f"\0allranks-{os.getuid()}-{uid}{purpose}"


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Give pid and uid of the other end of a Unix socket, as the kernel has seen it connect or listen."""
    pid, uid, _ = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return pid, uid


def check_peer(sock: socket.socket, pid: int | None) -> None:
    """Raise NodeError where the other end is not this process of our own user."""
    other, uid = peer_of(sock)
    if (other, uid) != (pid, os.getuid()):
        raise NodeError(f"the run's socket belongs to another process (pid {other}, user {uid})")


def is_own(writer: asyncio.StreamWriter) -> bool:
    """Tell whether our own user is at the other end of a connection."""
    _, uid = peer_of(writer.get_extra_info("socket"))
    return uid == os.getuid()


def packed(document: JsonObject) -> bytes:
    """Give the bytes of a document behind their number."""
    text = write_json(document)
    return struct.pack(">I", len(text)) + text


async def read_packed(reader: asyncio.StreamReader, limit: int = PART_LIMIT) -> JsonObject:
    """Read a document; raise DecodeError, EOFError, OSError."""
    size = struct.unpack(">I", await reader.readexactly(4))[0]
    if size > limit:
        raise DecodeError("the document is too long")
    return read_object(await reader.readexactly(size), limit)


def another_way(run: RunDirectory) -> str:
    """Say how a command gets to the nodes of a run that are out of reach."""
    controller = run.read_run().controller
    if run.engine.get("engine") == "kubernetes":
        return "use kubectl exec"
    if run.job is not None:
        return f"use srun --overlap --jobid={run.job}"
    if controller is not None and controller.host not in (None, platform.node()):
        return f"give the same command on {controller.host}"
    return "name the nodes with --hosts"


def controller_here(run: RunDirectory, verb: str) -> ControllerRecord:
    """Return the controller of a run that goes on, which a command can ask; raise UsageError where none is here."""
    controller = run.read_run().controller
    if run.has_ended:
        raise UsageError(f"{run.name} is over: no rank of it runs\nhint: allranks report {run.name}")
    host = controller.host if controller is not None else None
    if run.engine or host != platform.node():
        way = another_way(run)
        if run.job is not None and host:
            way = f"srun --overlap --jobid={run.job} --nodelist={host} --ntasks=1 allranks {verb} {run.path}"
        raise UsageError(f"allranks {verb} asks the controller of {run.name}, which is not here\nhint: {way}")
    if controller is None or not run.controller_alive():
        raise UsageError(
            f"the controller of {run.name} has ended\nhint: allranks attach {run.name}, then allranks {verb}"
        )
    return controller


async def ask(
    uid: str, controller: ControllerRecord, question: Question, kind: type[Answer], seconds: float = ANSWER_SECONDS
) -> Answer:
    """Ask the controller of a run on this machine, which has so many seconds; raise NodeError where it gives none."""
    try:
        reader, writer = await asyncio.open_unix_connection(socket_name(uid, QUESTIONS_SOCKET))
        try:
            check_peer(writer.get_extra_info("socket"), controller.pid)
            writer.write(packed(QUESTIONS.write(question)))
            limit = seconds + REQUEST_SECONDS
            answer = decode(kind, await asyncio.wait_for(read_packed(reader, ANSWER_LIMIT), limit))
        finally:
            writer.close()
    except (EOFError, OSError, ValueError, asyncio.TimeoutError, DecodeError) as error:
        why = str(error) or type(error).__name__
        raise NodeError(f"the controller (pid {controller.pid}) gives no answer: {why}") from None
    if answer.failed:
        raise NodeError(f"the controller (pid {controller.pid}) could not look: {answer.failed}")
    return answer
