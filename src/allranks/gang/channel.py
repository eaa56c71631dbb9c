"""One channel to one node: a client process, the boot marker, then frames both ways (IO, no decisions).

`Shipper` sends the synced tree over it.

Runs on the asyncio loop with plain descriptors: at full output this path carries every byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from allranks.agent.files import grow_pipe
from allranks.cluster import Node
from allranks.errors import AllranksError
from allranks.findings import Finding
from allranks.protocol.frames import TREE, Decoder, Frame, FrameError, Outgoing, OutputFrame, Stream, pack_output
from allranks.protocol.header import Header
from allranks.protocol.orders import Order, TakenOrder, pack_order

from .agent_archive import MARKER, prepared_parts
from .transport import READ, Client, Transport

if TYPE_CHECKING:
    from .working_tree import Archive

OF_PIPES = 32 << 20  # all clients together: half of what Linux lets a user have (pipe(7), pipe-user-pages-soft)
DEFAULT_PIPE = 64 << 10
BANNER_LIMIT = 1 << 20  # bytes of login banners before the marker
STDERR_LIMIT = 64 << 10
MAX_TRIES = 6
DEBUG = "debug1:"  # how lines of ssh begin that say how far it has come
TAKEN_EVERY = 64 << 10  # bytes of output between two words of how much has come: half of what an agent sends ahead
TAKEN_PACE = 0.02  # seconds between two words: each costs ssh, sshd, relay and agent a turn
CHUNK = 128 << 10  # bytes of the synced tree in one frame, far below what a frame may hold
WINDOW = 8 * CHUNK  # bytes on their way to one node: pings never wait behind more


def pipe_of(nodes: int) -> int:
    """Give the bytes that each client's pipe may hold.

    >>> [pipe_of(nodes) >> 10 for nodes in (1, 100, 4096)]
    [1024, 256, 64]
    """
    size = READ
    while size > DEFAULT_PIPE and size * nodes > OF_PIPES:
        size //= 2
    return size


class NodeFailed(Exception):
    """A node could not be reached, or did not answer as it has to."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class Channel:
    """Opens, speaks, and closes; `on_frames` and `on_closed` are called from the loop."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        on_frames: Callable[[list[Frame]], None],
        on_closed: Callable[[str], None],
        pipe: int = DEFAULT_PIPE,
    ) -> None:
        """`pipe` are the bytes that its client may be ahead of this process, where the kernel lets it."""
        self.node = node
        self._pipe = pipe
        self._transport = transport
        self._on_frames = on_frames
        self._on_closed = on_closed
        self._client: Client | None = None
        self._writing = threading.Lock()  # a beat comes from a thread of its own
        self._decoder = Decoder()
        self._out = Outgoing()
        self._banner = bytearray()
        self._stderr = bytearray()
        self._booted: asyncio.Future[None] | None = None
        self._open_fds: set[int] = set()
        self._output_taken = 0  # bytes over this connection
        self._output_acknowledged = 0  # of them the other side knows
        self._taken_due = 0.0  # when the other side may hear of more, by the loop's clock
        self._saying_taken: asyncio.TimerHandle | None = None
        self._payload: list[bytes] = []  # what goes to the node after its marker

    async def open(self, header: Header, first: Order, seconds: float) -> None:
        """Start the node side and return when its marker has come; raise NodeFailed.

        A client that sshd turned away before authentication (MaxStartups) is tried again.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        for attempt in range(MAX_TRIES):
            try:
                await self._open_once(header, first, deadline, seconds)
                return
            except NodeFailed:
                left = deadline - asyncio.get_running_loop().time()
                again = self._transport.retry(self.node, self._stderr.decode("utf-8", "replace"))
                if not again or left < 1 or attempt == MAX_TRIES - 1:
                    raise
                await asyncio.sleep(min(0.2 * 2**attempt, left / 2))

    async def _open_once(self, header: Header, first: Order, deadline: float, seconds: float) -> None:
        self.close()
        loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self._output_taken = self._output_acknowledged = 0
        self._out.clear()
        self._banner, self._stderr = bytearray(), bytearray()
        self._booted = loop.create_future()
        began = loop.time()
        try:
            self._client = await self._transport.connect(self.node, header, max(0.1, deadline - began))
            deadline += loop.time() - began  # the marker has its own time, whatever was tried before this client
            if self._client is None:
                raise NodeFailed(self._transport.silence(self.node, seconds))
            if not self._client.boots:
                self._watch(self._client)
                self._write(self._packed(first))
                self._booted.set_result(None)
                return
            self._write(self._transport.opening(self.node, header))
            parts = await prepared_parts(header)  # while the connection is being set up
            self._payload = [*parts, self._packed(first)]
            if self._client is None:  # closed meanwhile
                raise NodeFailed(self._transport.silence(self.node, seconds))
            self._watch(self._client)
        except (OSError, subprocess.SubprocessError, AllranksError) as error:
            self.close()
            raise NodeFailed(self._transport.not_started(self.node, error)) from None
        try:
            await asyncio.wait_for(asyncio.shield(self._booted), max(0.1, deadline - loop.time()))
        except asyncio.TimeoutError:
            self.close()
            stderr = self._stderr.decode("utf-8", "replace")
            raise NodeFailed(self._transport.silence(self.node, seconds, stderr)) from None

    def _watch(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        if self._pipe > DEFAULT_PIPE:
            grow_pipe(client.stdout, self._pipe)
        for fd, callback in ((client.stdout, self._on_stdout), (client.stderr, self._on_stderr)):
            if fd is not None:
                self._open_fds.add(fd)
                loop.add_reader(fd, callback)

    # -- reading -----------------------------------------------------------------------------------

    def _on_stderr(self) -> None:
        assert self._client is not None and self._client.stderr is not None
        fd = self._client.stderr
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        if not data:
            self._forget(fd)
        elif len(self._stderr) < STDERR_LIMIT:
            self._stderr += data

    def _on_stdout(self) -> None:
        assert self._client is not None
        buffer = self._transport.buffer
        try:
            size = os.readv(self._client.stdout, [buffer])
        except BlockingIOError:
            return
        except ConnectionResetError:
            size = 0
        if not size:
            self._ended()
        elif self._booted is not None and not self._booted.done():
            self._look_for_marker(buffer[:size])
        else:
            self._feed(buffer[:size])

    def _look_for_marker(self, data: memoryview) -> None:
        self._banner += data
        at = self._banner.find(MARKER)
        if at < 0:
            if len(self._banner) > BANNER_LIMIT:
                self._ended()
            return
        assert self._booted is not None
        self._write(*self._payload)
        self._booted.set_result(None)  # from here on beats may come
        rest = memoryview(bytes(self._banner[at + len(MARKER) :]))
        if rest:
            self._feed(rest)

    def _feed(self, data: memoryview) -> None:
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            self.close()
            self._on_closed(str(error))
            return
        if frames:
            self._on_frames(frames)
            self._acknowledge_output(frames)

    def _acknowledge_output(self, frames: list[Frame]) -> None:
        self._output_taken += sum(len(frame.data) for frame in frames if isinstance(frame, OutputFrame))
        if self._output_taken - self._output_acknowledged >= TAKEN_EVERY and self._saying_taken is None:
            loop = asyncio.get_running_loop()
            self._saying_taken = loop.call_at(max(self._taken_due, loop.time()), self._say_taken)

    def _say_taken(self) -> None:
        self._saying_taken = None
        self._taken_due = asyncio.get_running_loop().time() + TAKEN_PACE
        self._output_acknowledged = self._output_taken
        self.send(TakenOrder(self._output_taken))

    def _ended(self) -> None:
        assert self._client is not None
        code = self._client.code(0.5)
        self._read_last_words(self._client)
        stderr = self._stderr.decode("utf-8", "replace")
        booting = self._booted is not None and not self._booted.done()
        stdout = bytes(self._banner)
        self.close()
        if booting and self._booted is not None:
            self._booted.set_exception(NodeFailed(self._transport.failure(self.node, stdout, stderr, code)))
        else:
            last = [line for line in stderr.strip().splitlines() if not line.startswith(DEBUG)]
            self._on_closed(last[-1] if last else "the connection ended")

    def _read_last_words(self, client: Client) -> None:
        with contextlib.suppress(OSError):
            while client.stderr is not None and len(self._stderr) < STDERR_LIMIT:
                data = os.read(client.stderr, 65536)
                if not data:
                    break
                self._stderr += data

    # -- writing -----------------------------------------------------------------------------------

    def send(self, order: Order) -> None:
        """Queue an order; nothing happens on a closed channel."""
        if self.is_open:
            self._write(self._packed(order))

    def _packed(self, order: Order) -> bytes:
        return pack_order(self._transport.read_there(self.node, order))

    def send_bytes(self, frames: bytes) -> None:
        """Queues packed frames; nothing happens on a closed channel."""
        if self.is_open:
            self._write(frames)

    def send_past(self, loop: asyncio.AbstractEventLoop, order: Order) -> None:
        """Send an order from another thread than the loop's, which may wait for a disk meanwhile."""
        with self._writing:
            client = self._client
            if client is None or not self.is_open:
                return
            self._out.add((self._packed(order),))
            is_written = self._push(client)
        if not is_written:
            loop.call_soon_threadsafe(self._flush)

    def _write(self, *pieces: bytes) -> None:
        """Queue without a copy: the same archive is on its way to many nodes at once."""
        with self._writing:
            waiting = bool(self._out)
            self._out.add(pieces)
        if not waiting:
            self._flush()

    def _flush(self) -> None:
        client = self._client
        if client is None:
            return
        with self._writing:
            is_written = self._push(client)
        fd = client.stdin
        if is_written and fd in self._open_fds:
            self._open_fds.discard(fd)
            asyncio.get_running_loop().remove_writer(fd)
        elif not is_written and fd not in self._open_fds:
            self._open_fds.add(fd)
            asyncio.get_running_loop().add_writer(fd, self._flush)

    def _push(self, client: Client) -> bool:
        """Write what waits, with the lock held; False where some of it has to wait on."""
        try:
            while self._out:
                self._out.drop(os.writev(client.stdin, self._out.next()))
        except BlockingIOError:
            return False
        except OSError:
            self._out.clear()  # the reading side will tell
        return True

    # -- closing -----------------------------------------------------------------------------------

    def _forget(self, fd: int) -> None:
        if fd in self._open_fds:
            self._open_fds.discard(fd)
            loop = asyncio.get_running_loop()
            loop.remove_reader(fd)
            loop.remove_writer(fd)

    def close(self) -> None:
        """End the client process (never anything on the node but the relay)."""
        with self._writing:
            client = self._client
            self._client = None
        if client is None:
            return
        if self._saying_taken is not None:
            self._saying_taken.cancel()
            self._saying_taken = None
        for fd in list(self._open_fds):
            self._forget(fd)
        client.end()

    @property
    def is_open(self) -> bool:
        """True between the marker and the end."""
        return self._client is not None and self._booted is not None and self._booted.done()


class Shipper:
    """One archive of a synced tree on its way to all nodes, as fast as each takes it.

    A node says how much it has; never more than WINDOW is on its way, so that pings, and the word of a stop, pass in
    between. After a broken connection the node says again where to go on.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._sent: dict[int, int] = {}

    def go_on(self, index: int, have: int, begins: bool, channel: Channel) -> None:
        """Send the next pieces to a node (by its index) that has `have` bytes."""
        size = self._archive.tree.packed
        at = have if begins else max(have, self._sent.get(index, 0))
        while at < size and at - have < WINDOW:
            data = self._archive.read(at, min(CHUNK, size - at))
            channel.send_bytes(pack_output(Stream(TREE, 0, 0), at, data))
            at += len(data)
        self._sent[index] = at
