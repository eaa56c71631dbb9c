"""Commands and fetches on nodes that have joined: a command on node 0 asks the run's coordinator for channels (IO).

The coordinator listens at a Unix socket that has a name and no file (unix(7), abstract), and speaks with processes of
its own user alone. Of each channel that is asked for it calls the node, which declines unless it was started with
--allow-exec. A channel has a connection of its own, so nothing of it holds up the run.
"""

from __future__ import annotations

import asyncio
import platform
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from allranks.agent.processes import raise_limits
from allranks.cluster import Cluster, Node
from allranks.cluster.nodes import JOINED
from allranks.errors import NodeError
from allranks.findings import Finding, Where
from allranks.gang.transport import Client, Transport
from allranks.protocol.codec import decode, encode
from allranks.protocol.controls import ChannelAnswer, ChannelRequest
from allranks.protocol.header import AgentHeader, FetchHeader, Header
from allranks.protocol.jsontext import DecodeError, read_object
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ControllerRecord
from allranks.runs.questions import (
    PART_LIMIT,
    REQUEST_SECONDS,
    check_peer,
    is_own,
    packed,
    read_packed,
    socket_name,
)
from allranks.settings import RunSpec

from .dialled import Declined, Line, Listener
from .reachable_nodes import reached
from .ssh import SshTransport

MOST_SECONDS = 3600.0  # for a node to answer
MOST_SHOWN = 100  # characters of a name
CONSENT = "start `allranks join` there with --allow-exec to let it"


# -- the coordinator's side --------------------------------------------------------------------------------


async def serve_channels(listener: Listener, ranks: Mapping[str, int], name: str) -> asyncio.Server:
    """Answer commands on node 0 at a name, in the loop of the listener. Raise OSError where another process has it.

    `ranks`: node ranks by name.
    """

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listener.keep(asyncio.current_task())
        if not is_own(writer):
            writer.close()
            return
        try:
            request = decode(ChannelRequest, await asyncio.wait_for(read_packed(reader), REQUEST_SECONDS))
            line = await called(request)
        except Declined as declined:
            answer = ChannelAnswer(declined=str(declined))
        except asyncio.TimeoutError:
            answer = ChannelAnswer(failed="it did not answer in time")
        except (DecodeError, EOFError, OSError) as error:
            answer = ChannelAnswer(failed=f"the request cannot be read: {error}")
        else:
            writer.write(packed(encode(ChannelAnswer())))
            line.carry(request.header, reader, writer)
            return
        with suppress(OSError):
            writer.write(packed(encode(answer)))
        writer.close()

    async def called(request: ChannelRequest) -> Line:
        rank = ranks.get(request.node)
        if rank is None:
            raise DecodeError(f"{request.node[:MOST_SHOWN]} is not a node that has joined")
        return await listener.call(rank, min(max(request.seconds, 0.1), MOST_SECONDS))

    return await asyncio.start_unix_server(accept, name, limit=1 << 20)


# -- the side of a command on node 0 -----------------------------------------------------------------------


class CalledTransport(SshTransport):
    """Reaches nodes that have joined through their coordinator, which is a process of this machine."""

    def __init__(self, uid: str, coordinator: int, spec: RunSpec) -> None:
        """`uid` is the run's, `coordinator` the pid of its controller."""
        super().__init__(spec.launch)
        self._name = socket_name(uid)
        self._coordinator = coordinator

    async def connect(self, node: Node, header: Header, seconds: float) -> Client | None:
        """Return a channel to a node that consents. Raise NodeError with the words of one that does not, OSError."""
        if node.is_local:
            return await super().connect(node, header, seconds)
        assert isinstance(header, (AgentHeader, FetchHeader)), "nodes that have joined are not swept"
        raise_limits()
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.setblocking(False)
            answer = await self._ask(sock, ChannelRequest(node.name, seconds, header))
            if answer.declined:
                raise NodeError(f"{answer.declined}\nhint: {CONSENT}")
            if answer.failed:
                raise NodeError(answer.failed)
            return Client.of_socket(sock)
        except BaseException:
            sock.close()
            raise

    async def _ask(self, sock: socket.socket, request: ChannelRequest) -> ChannelAnswer:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, self._name)
        check_peer(sock, self._coordinator)
        await loop.sock_sendall(sock, packed(encode(request)))
        size = struct.unpack(">I", await _exactly(sock, 4))[0]
        if size > PART_LIMIT:
            raise NodeError("the run's coordinator answers something else")
        try:
            return decode(ChannelAnswer, read_object(await _exactly(sock, size), PART_LIMIT))
        except DecodeError as error:
            raise NodeError(f"the run's coordinator answers something else: {error}") from None

    def described(self, node: Node) -> list[str]:
        """Return how a node is reached, as `--dry-run` shows it."""
        return super().described(node) if node.is_local else ["(over the connection of its join)"]

    def not_started(self, node: Node, error: Exception) -> Finding:
        """Say why a node cannot have a channel; `error` is what `connect` raised."""
        if node.is_local:
            return super().not_started(node, error)
        message, _, remedy = str(error).partition("\nhint: ")
        if isinstance(error, OSError):
            message = f"the run's coordinator (pid {self._coordinator}) does not answer ({error.strerror or error})"
        return Finding("unknown", "fail", f"{node.name}: {message}", remedy, Where(node=node.name))


async def _exactly(sock: socket.socket, count: int) -> bytes:
    """Read so many bytes and not one of what follows; raise NodeError where the coordinator hangs up."""
    data = b""
    while len(data) < count:
        part = await asyncio.get_running_loop().sock_recv(sock, count - len(data))
        if not part:
            raise NodeError("the run's coordinator hung up")
        data += part
    return data


def out_of_reach(run: RunDirectory) -> str:
    """Say why this machine does not reach the nodes of a run; empty where it may."""
    document = run.read_run()
    engine = str(run.engine.get("engine") or "")
    if run.job is not None:
        engine = "Slurm"
    if engine:
        return f"the nodes of {run.name} ({engine}) are not reached by ssh from here"
    if document.source != JOINED:
        return ""
    controller = document.controller or ControllerRecord()
    if run.has_ended or controller.pid is None:
        return f"the nodes of {run.name} have left: they joined, and `allranks join` ends on each of them with the run"
    if controller.host != platform.node():
        return f"the nodes of {run.name} joined, and node 0 alone reaches them, which is {controller.host}"
    if not run.controller_alive():
        return f"the coordinator of {run.name} (pid {controller.pid}) has died, and the way to its nodes with it"
    return ""


@contextmanager
def reached_nodes(run: RunDirectory, spec: RunSpec, cluster: Cluster) -> Iterator[Transport]:
    """Reach the nodes of a run that are in reach, for another command. `spec` is the run's own."""
    document = run.read_run()
    if document.source == JOINED and document.controller is not None:
        yield CalledTransport(document.uid, document.controller.pid or 0, spec)
        return
    with reached(spec, cluster) as transport:
        yield transport
