"""One command on every node of a cluster, under an agent as ranks are: its output, its end, and nothing left (IO).

An agent owns the command as it owns a rank: by lineage, control group and run tag. It ends the command with all that
it has started when the controller says so, and when no word of the controller has come for LEASE.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from allranks.cluster import Cluster, Node
from allranks.findings import Finding, Where
from allranks.protocol.frames import RANK_LOG, OutputFrame, Stream, stream_key
from allranks.protocol.header import AgentHeader
from allranks.protocol.messages import (
    DrainedMessage,
    DroppedMessage,
    EndedMessage,
    ExitMessage,
    HelloMessage,
    Message,
)
from allranks.protocol.node_names import RUN_TAG
from allranks.protocol.orders import AckOrder, EndOrder, HelloOrder, RankOrder, StartOrder

from .channel import NodeFailed
from .node_session import OPENING_AT_ONCE, NoAnswer, NodeSession, beat_all
from .places import node_label
from .tasks import start_task
from .transport import Transport

LEASE = 30.0
END_SECONDS = 8.0  # beyond the grace, for a node to say that it has ended the command
DRAIN_SECONDS = 60.0
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
    `timed_out` then says why. `left` could not be ended.
    """

    node: Node
    output: OutputExcerpt = field(default_factory=OutputExcerpt)
    code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    failure: Finding | None = None
    dropped: int = 0
    left: tuple[str, ...] = ()


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
        self._stream = Stream(RANK_LOG, node.index, 0)
        self._received = 0
        self.session = NodeSession(node, transport, self._receive)

    # -- what comes -------------------------------------------------------------------------------

    def _receive(self, received: OutputFrame | Message) -> None:
        if isinstance(received, DroppedMessage):
            self.result.dropped = received.total
        elif isinstance(received, OutputFrame):
            is_new = received.stream == self._stream and received.offset >= self._received
            if is_new:
                self._received = received.offset + len(received.data)
                self.result.output.add(received.data)
                self.session.send(AckOrder({stream_key(self._stream): self._received}))

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
        self.session.expect(ExitMessage, EndedMessage, DrainedMessage)
        try:
            hello = await self.session.open(header, HelloOrder(lease=LEASE), HelloMessage, self._job.connect_timeout)
        except NodeFailed as error:
            self.result.failure = error.finding
            return False
        environment = {**self._job.env, RUN_TAG: header.run_tag}
        order = RankOrder(node.index, 0, self._job.command, environment, self._job.workdir or hello.cwd)
        self.session.send(StartOrder(0, (order,)))
        return True

    async def follow(self) -> None:
        """Wait for the command's end, or for its time to be over."""
        result = self.result
        try:
            end = await self.session.message(ExitMessage, self._job.timeout)
        except asyncio.TimeoutError:
            result.timed_out = True
        except NoAnswer:
            name = result.node.name
            own = f"rank {result.node.index} could not"
            why = (self.session.why or "no answer").replace(own, "it could not", 1)
            result.failure = Finding("unknown", "fail", f"{name}: {why}", "", Where(node=name))
        else:
            result.code = end.code
            result.signal = end.signal

    async def end(self) -> None:
        """End the command with all that it has started, take the rest of its output, give the node back."""
        if not self.session.is_open:
            return
        result = self.result
        has_ended = result.code is not None or result.signal is not None
        self.session.send(EndOrder(0.0 if has_ended else self._job.grace, "exec"))
        with contextlib.suppress(asyncio.TimeoutError, NoAnswer):  # its lease then ends what it may still run
            ended = await self.session.message(EndedMessage, self._job.grace + END_SECONDS)
            result.left = tuple(f"pid {process.pid} ({process.command})" for process in ended.left)
            await self.session.message(DrainedMessage, DRAIN_SECONDS)
        await self.session.release()


class Execution:
    """The command on all nodes. `on_end` is called with each node's result as it comes."""

    def __init__(self, job: Job, cluster: Cluster, transport: Transport, on_end: Callable[[Executed], None]) -> None:
        self._commands = [NodeCommand(node, job, transport) for node in cluster.nodes]
        self._on_end = on_end
        self._opening = asyncio.Semaphore(OPENING_AT_ONCE)

    @property
    def results(self) -> Sequence[Executed]:
        """What there is of each node so far, in the order of the list."""
        return [command.result for command in self._commands]

    async def run(self) -> None:
        """Run the command everywhere; where this is cancelled, end it everywhere."""
        beats = start_task(beat_all(lambda: [command.session for command in self._commands], LEASE))
        try:
            await asyncio.gather(*(self._one(command) for command in self._commands))
        finally:
            try:
                await asyncio.gather(*(command.end() for command in self._commands))
            finally:
                beats.cancel()
                for command in self._commands:
                    command.session.close()

    async def _one(self, command: NodeCommand) -> None:
        async with self._opening:
            is_started = await command.start()
        if is_started:
            await command.follow()
            await command.end()
        command.session.close()
        self._on_end(command.result)
