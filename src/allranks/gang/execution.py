"""One command on every node of a cluster, under an agent as ranks are: its output, its end, and nothing left (IO).

An agent owns the command as it owns a rank: by lineage, control group and run tag. It ends the command with all that
it has started when the controller says so, and when no word of the controller has come for LEASE.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from allranks.cluster import Cluster, Node
from allranks.findings import Finding, Where
from allranks.protocol.frames import RANK_LOG, Frame, OutputFrame, Stream, stream_key
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.messages import (
    DrainedMessage,
    DroppedMessage,
    EndedMessage,
    ExitMessage,
    FaultMessage,
    HelloMessage,
    read_message,
)
from allranks.protocol.orders import AckOrder, EndOrder, HelloOrder, PingOrder, RankOrder, ReleaseOrder, StartOrder

from .channel import AwaitedMessages, Channel, ChannelFailed
from .places import node_label
from .tasks import run_with_callbacks, start_task
from .transport import Transport

AT_ONCE = 64  # nodes that are being reached
ANSWER_SECONDS = 20.0
LEASE = 30.0
END_SECONDS = 8.0  # beyond the grace, for a node to say that it has ended the command
DRAIN_SECONDS = 60.0
RELEASE_SECONDS = 2.0
HEAD = 64 << 10  # bytes of the output that are kept of its beginning
TAIL = 192 << 10  # and of its end


class OutputExcerpt:
    """What a node's command has printed: the beginning and the end, how much there was, and the hash of all of it."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._hash = hashlib.sha256()
        self.size = 0

    def add(self, data: bytes) -> None:
        """More output, in order."""
        self.size += len(data)
        self._hash.update(data)
        room = HEAD - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * TAIL:  # cut now and then: each cut copies
            self._tail = self._tail[-TAIL:]

    @property
    def digest(self) -> str:
        """Hash of all that was printed: two nodes with the same have printed the same."""
        return self._hash.hexdigest()

    @property
    def left_out(self) -> int:
        """Bytes between the beginning and the end that are not kept."""
        return self.size - len(self._head) - min(len(self._tail), TAIL)

    @property
    def head(self) -> bytes:
        """The beginning; all of it where nothing is left out."""
        return self._head if self.left_out else self._head + self._tail

    @property
    def tail(self) -> bytes:
        """The end, where something before it is left out."""
        if not self.left_out:
            return b""
        return self._tail[-TAIL:]


@dataclass
class Executed:
    """What became of the command on one node.

    `code` or `signal` of its process; neither where it never ended: `failure` or
    `timed_out` then says why. `left` could not be ended. `is_whole`: all output has come.
    """

    node: Node
    output: OutputExcerpt = field(default_factory=OutputExcerpt)
    code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    failure: Finding | None = None
    dropped: int = 0
    left: tuple[str, ...] = ()
    is_whole: bool = False


@dataclass(frozen=True)
class Job:
    """The command, and how long it may take. `uid` names it on the nodes, as it does a run. Times in seconds.

    `workdir` None: where ssh leaves it. `timeout` None: no limit.
    """

    uid: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str | None
    node_dir: str | None
    timeout: float | None
    grace: float
    connect_timeout: float


class NodeCommand:
    """The command on one node."""

    def __init__(self, node: Node, job: Job, transport: Transport) -> None:
        self.result = Executed(node)
        self._job = job
        self._transport = transport
        self._stream = Stream(RANK_LOG, node.index, 0)
        self._received = 0
        self._awaited = AwaitedMessages()
        self._channel = Channel(node, transport, self.receive, self._lose)
        self._why = ""  # a message that is awaited does not come

    # -- what comes -------------------------------------------------------------------------------

    def receive(self, frames: list[Frame]) -> None:
        """Take what the node sends."""
        for frame in frames:
            if isinstance(frame, OutputFrame):
                self._take(frame)
                continue
            try:
                message = read_message(frame)
            except DecodeError as error:
                self._lose(f"its {str(frame['type'])[:20]} message cannot be read: {error}")
                continue
            if isinstance(message, DroppedMessage):
                self.result.dropped = message.total
            elif isinstance(message, FaultMessage):
                self._give_up(message.message, HelloMessage, ExitMessage)
            self._awaited.take(message)
        if self._received:
            self._channel.send(AckOrder({stream_key(self._stream): self._received}))

    def _take(self, frame: OutputFrame) -> None:
        """Bytes of the command; a node has one command, and of each byte it tells once."""
        if frame.stream != self._stream or frame.offset < self._received:
            return
        self._received = frame.offset + len(frame.data)
        self.result.output.add(frame.data)

    def _lose(self, why: str) -> None:
        """No more answers will come."""
        self._give_up(why)

    def _give_up(self, why: str, *kinds: type) -> None:
        self._why = self._why or why
        self._awaited.give_up(why, *kinds)

    # -- how it goes on ---------------------------------------------------------------------------

    async def start(self) -> bool:
        """Reach the node and start the command; False where that failed, with `result.failure`."""
        node = self.result.node
        label = node_label(node.index)
        header = AgentHeader(
            mode="agent",
            uid=self._job.uid,
            node=label,
            run_tag=f"{self._job.uid}/{label}",
            lease=LEASE,
            grace=self._job.grace,
            node_dir=self._job.node_dir,
        )
        self._awaited.expect(HelloMessage, ExitMessage, EndedMessage, DrainedMessage)
        try:
            await self._channel.open(header, HelloOrder(lease=LEASE), self._job.connect_timeout)
            hello = await self._awaited.message(HelloMessage, ANSWER_SECONDS)
        except ChannelFailed as error:
            self.result.failure = error.finding
            return False
        except asyncio.TimeoutError:
            self.result.failure = self._transport.silence(node, ANSWER_SECONDS)
            return False
        if not isinstance(hello, HelloMessage):
            self.result.failure = self._transport.failure(node, b"", self._why or "another answer", None)
            return False
        environment = {**self._job.env, "ALLRANKS_MARK": header.run_tag}
        order = RankOrder(node.index, 0, self._job.command, environment, self._job.workdir or hello.cwd)
        self._channel.send(StartOrder(0, (order,)))
        return True

    async def follow(self) -> None:
        """Wait for the command's end, or for its time to be over."""
        result = self.result
        try:
            message = await self._awaited.message(ExitMessage, self._job.timeout)
        except asyncio.TimeoutError:
            result.timed_out = True
            return
        if isinstance(message, ExitMessage):
            result.code = message.code
            result.signal = message.signal
        else:
            result.failure = self._failure()

    async def end(self) -> None:
        """End the command with all that it has started, take the rest of its output, give the node back."""
        if not self._channel.is_open:
            return
        result = self.result
        has_ended = result.code is not None or result.signal is not None
        self._channel.send(EndOrder(0.0 if has_ended else self._job.grace, "exec"))
        with contextlib.suppress(asyncio.TimeoutError):  # its lease then ends what it may still run
            ended = await self._awaited.message(EndedMessage, self._job.grace + END_SECONDS)
            if isinstance(ended, EndedMessage):
                result.left = tuple(f"pid {process.pid} ({process.command})" for process in ended.left)
                drained = await self._awaited.message(DrainedMessage, DRAIN_SECONDS)
                result.is_whole = isinstance(drained, DrainedMessage)
        self._channel.send(ReleaseOrder())
        deadline = time.monotonic() + RELEASE_SECONDS
        while time.monotonic() < deadline and self._channel.is_open:
            await asyncio.sleep(0.01)

    def _failure(self) -> Finding:
        """Word what the node has said in the place of an end."""
        node = self.result.node.name
        why = (self._why or "no answer").replace(f"rank {self.result.node.index} could not", "it could not", 1)
        return Finding("unknown", "fail", f"{node}: {why}", "", Where(node=node))

    def beat(self) -> None:
        """Renew the lease."""
        self._channel.send(PingOrder(time.time()))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


class Execution:
    """The command on all nodes. `on_end` is called with each node's result as it comes."""

    def __init__(self, job: Job, cluster: Cluster, transport: Transport, on_end: Callable[[Executed], None]) -> None:
        self._commands = [NodeCommand(node, job, transport) for node in cluster.nodes]
        self._on_end = on_end
        self._opening = asyncio.Semaphore(AT_ONCE)

    @property
    def results(self) -> Sequence[Executed]:
        """What there is of each node so far, in the order of the list."""
        return [command.result for command in self._commands]

    async def run(self) -> None:
        """Run the command everywhere; where this is cancelled, end it everywhere."""
        await run_with_callbacks(self._run())

    async def _run(self) -> None:
        beats = start_task(self._beat())
        try:
            await asyncio.gather(*(self._one(command) for command in self._commands))
        finally:
            try:
                await asyncio.gather(*(command.end() for command in self._commands))
            finally:
                beats.cancel()
                for command in self._commands:
                    command.close()

    async def _one(self, command: NodeCommand) -> None:
        async with self._opening:
            is_started = await command.start()
        if is_started:
            await command.follow()
            await command.end()
        command.close()
        self._on_end(command.result)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(LEASE / 6)
            for command in self._commands:
                with contextlib.suppress(OSError):
                    command.beat()
