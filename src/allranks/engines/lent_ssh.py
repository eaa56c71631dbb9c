"""ssh of the machine that starts a run, lent to a controller on another one: it starts there what dials (IO).

The controller gives its order for a node to the door, a process on its own host. The door hands it on to the machine
that has started it over ssh, and ssh of that machine takes it to the node. So the secret of an order is in sockets and
pipes of one user alone. The door ends with that machine, and nodes that have dialled need neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple

from allranks.agent.files import write_all
from allranks.cluster import Node
from allranks.errors import NodeError
from allranks.findings import Finding, Where
from allranks.gang.channel import NodeFailed
from allranks.gang.node_session import ANSWER_SECONDS, NodeSession
from allranks.gang.tasks import start_task
from allranks.gang.transport import Client
from allranks.protocol.codec import decode, encode
from allranks.protocol.header import DialHeader
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.messages import DialledMessage
from allranks.protocol.orders import HelloOrder
from allranks.runs.questions import REQUEST_SECONDS, is_own, packed, read_packed, socket_name

from .ssh import SshTransport

DOOR = "ALLRANKS_DOOR"  # names the door to a controller
DOOR_SOCKET = "-door"
BEAT_SECONDS = 5.0
SILENT = 20.0  # seconds without a beat, after which the door ends: sshd may take hours to see that a link was cut


class StartRequest(NamedTuple):
    """Start what dials on a node of the host list, within `seconds`. The door numbers what goes through it."""

    node: str
    header: DialHeader
    seconds: float
    number: int = 0


class StartAnswer(NamedTuple):
    """What the node has said, or why it was not reached."""

    said: DialledMessage = DialledMessage()
    finding: Finding | None = None
    number: int = 0


async def start_what_dials(node: Node, ssh: SshTransport, request: StartRequest) -> StartAnswer:
    """Have ssh of this machine start what dials, and return the node's answer."""
    session = NodeSession(node, ssh)
    patience = request.header.patience + ANSWER_SECONDS
    try:
        said = await session.open(request.header, HelloOrder(), DialledMessage, request.seconds, patience)
        return StartAnswer(said)
    except NodeFailed as error:
        return StartAnswer(finding=error.finding)
    finally:
        session.close()


async def ask_door(name: str, request: StartRequest) -> StartAnswer:
    """Have the machine that started the run do that, through the door of this name."""
    seconds = request.seconds + request.header.patience + 2 * ANSWER_SECONDS
    try:
        reader, writer = await asyncio.open_unix_connection(socket_name(name, DOOR_SOCKET))
        try:
            if not is_own(writer):
                raise PermissionError("another user's")
            writer.write(packed(encode(request)))
            return decode(StartAnswer, await asyncio.wait_for(read_packed(reader), seconds))
        finally:
            writer.close()
    except (OSError, EOFError, DecodeError, asyncio.TimeoutError):
        message = f"{request.node} cannot be reached: ssh from the machine that started the run has ended"
        remedy = "allranks attach --take-over, on a machine that has ssh to the nodes and the run directory"
        return StartAnswer(finding=Finding("ssh-unreachable", "fail", message, remedy, Where(node=request.node)))


def lend_ssh(door: Client, nodes: Sequence[Node], ssh: SshTransport) -> None:
    """Do in a thread what comes through a door, for these nodes alone, until this process or the door ends.

    Return once it is open.
    """
    is_open = threading.Event()
    os.set_blocking(door.stdin, True)
    by_name = {node.name: node for node in nodes}

    def tell(answer: StartAnswer) -> None:
        with contextlib.suppress(OSError):  # the door has ended
            write_all(door.stdin, packed(encode(answer)))

    async def start(request: StartRequest) -> None:
        node = by_name.get(request.node)
        answer = StartAnswer(finding=Finding("unknown", "fail", f"{request.node} is not in the list of hosts"))
        if node is not None:
            answer = await start_what_dials(node, ssh, request)
        tell(answer._replace(number=request.number))

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            tell(StartAnswer())

    async def serve() -> None:
        reader = await _reader_of(door.stdout)
        with contextlib.suppress(OSError, EOFError, DecodeError):
            await read_packed(reader)
            is_open.set()
            start_task(beat())
            while True:
                start_task(start(decode(StartRequest, await read_packed(reader))))

    threading.Thread(target=lambda: asyncio.run(serve()), name="lent-ssh", daemon=True).start()
    if not is_open.wait(ANSWER_SECONDS):
        raise NodeError("the host of the controller gives no answer: its Python may be too slow to start")


async def _keep_door(name: str) -> None:
    """Hand on requests and answers until standard input ends or is silent."""
    numbers = itertools.count(1)
    asked: dict[int, asyncio.Future[StartAnswer]] = {}

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_own(writer):
            with contextlib.suppress(OSError, EOFError, DecodeError, asyncio.TimeoutError):
                request = decode(StartRequest, await asyncio.wait_for(read_packed(reader), REQUEST_SECONDS))
                number = next(numbers)
                asked[number] = asyncio.get_running_loop().create_future()
                write_all(1, packed(encode(request._replace(number=number))))
                writer.write(packed(encode(await asked[number])))
                await writer.drain()
        writer.close()

    answers = await _reader_of(0)
    server = await asyncio.start_unix_server(accept, socket_name(name, DOOR_SOCKET))
    write_all(1, packed({}))
    with contextlib.suppress(OSError, EOFError, DecodeError, asyncio.TimeoutError):
        while True:
            answer = decode(StartAnswer, await asyncio.wait_for(read_packed(answers), SILENT))
            if answer.number in asked:
                asked.pop(answer.number).set_result(answer)
    server.close()


def keep_door() -> None:
    """Be the door, on the controller's host. The first word names it."""
    asyncio.run(_keep_door(sys.argv[1]))


async def _reader_of(fd: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(os.dup(fd), "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader
