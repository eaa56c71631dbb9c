"""The conversation with one node's agent outside of a run: first answer, questions, beats, release (IO).

`check`, `exec`, `fetch` and the sweep of `clean` hold one with each node. A run's controller has a Member in its place,
which renews its channel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from allranks.cluster import Node
from allranks.cluster.names import is_address
from allranks.protocol.frames import Frame, OutputFrame
from allranks.protocol.header import Header
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.messages import DrainedMessage, EndedMessage, FaultMessage, Message, read_message
from allranks.protocol.orders import HelloOrder, Order, PingOrder, ReleaseOrder

from .channel import Channel, NodeFailed
from .transport import Transport

OPENING_AT_ONCE = 64  # nodes that are being reached: each takes a client, such as ssh, on this machine
ANSWER_SECONDS = 20.0  # beyond what a node is given for its work
RELEASE_SECONDS = 2.0
AFTER_A_FAULT = (EndedMessage, DrainedMessage)  # what an agent still says that has reported a fault

Answer = TypeVar("Answer", bound=Message)


class NoAnswer(Exception):
    """A node did not answer an order; the text says why."""


def shown_name(node: Node, hostname: str, taken: Collection[str]) -> str:
    """Return the name that outputs have for a node: its own, where the list has an address and no other has it."""
    if not is_address(node.name) or not hostname or hostname in taken or hostname.startswith("localhost"):
        return node.name
    return hostname


class NodeSession:
    """One node that is asked. `take` gets its output, and its messages beside those that are awaited."""

    def __init__(
        self, node: Node, transport: Transport, take: Callable[[OutputFrame | Message], None] | None = None
    ) -> None:
        self.node = node
        self.why = ""  # no more answers come
        self._transport = transport
        self._take = take
        self._channel = Channel(node, transport, self.receive, self.lose)
        self._awaited: dict[type, asyncio.Future[Message]] = {}

    @property
    def is_open(self) -> bool:
        """Tell whether orders still reach the agent."""
        return self._channel.is_open

    # -- what comes --------------------------------------------------------------------------------

    def receive(self, frames: list[Frame]) -> None:
        """Take frames of this node's agent."""
        for frame in frames:
            if isinstance(frame, OutputFrame):
                self._hand_on(frame)
                continue
            try:
                message = read_message(frame)
            except DecodeError as error:
                self.lose(f"its {str(frame['type'])[:20]} message cannot be read: {error}")
                continue
            if isinstance(message, FaultMessage):
                self.lose(message.message, but=AFTER_A_FAULT)
            self._settle(type(message), message)
            self._hand_on(message)

    def _hand_on(self, received: OutputFrame | Message) -> None:
        if self._take is not None:
            self._take(received)

    def lose(self, why: str, but: tuple[type, ...] = ()) -> None:
        """Await no more answers, `but` those of some kinds."""
        self.why = self.why or why
        for kind in self._awaited:
            if kind not in but:
                self._settle(kind, FaultMessage("no-answer", why))

    def _settle(self, kind: type, message: Message) -> None:
        future = self._awaited.get(kind)
        if future is not None and not future.done():
            future.set_result(message)

    # -- what is asked -----------------------------------------------------------------------------

    def expect(self, *kinds: type) -> None:
        """Wait for the next message of each kind from here on."""
        for kind in kinds:
            self._awaited[kind] = asyncio.get_running_loop().create_future()

    async def message(self, kind: type[Answer], seconds: float | None) -> Answer:
        """Await a message that is expected; raise asyncio.TimeoutError, or NoAnswer where it will not come."""
        message = await asyncio.wait_for(asyncio.shield(self._awaited[kind]), seconds)
        if not isinstance(message, kind):
            raise NoAnswer(message.message if isinstance(message, FaultMessage) else "another answer")
        return message

    async def open(
        self,
        header: Header,
        first: HelloOrder,
        kind: type[Answer],
        connect_seconds: float,
        seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """Reach the agent and return its first answer, which is of a kind; raise NodeFailed."""
        self.expect(kind)
        await self.connect(header, first, connect_seconds)
        try:
            return await self.message(kind, seconds)
        except asyncio.TimeoutError:
            raise NodeFailed(self._transport.silence(self.node, seconds)) from None
        except NoAnswer as error:
            raise NodeFailed(self._transport.failure(self.node, b"", self.why or str(error), None)) from None

    async def connect(self, header: Header, first: HelloOrder, seconds: float) -> None:
        """Reach the agent; raise NodeFailed."""
        await self._channel.open(header, first, seconds)

    async def ask(self, order: Order, kind: type[Answer], seconds: float) -> Answer:
        """Give the answer to an order; raise NoAnswer where none comes."""
        self.expect(kind)
        self.send(order)
        try:
            return await self.message(kind, seconds)
        except asyncio.TimeoutError:
            raise NoAnswer(f"{self.node.name} gave no answer within {seconds:g} s") from None

    def send(self, order: Order) -> None:
        """Send an order; nothing happens on a closed channel."""
        self._channel.send(order)

    async def release(self) -> None:
        """Let the agent go, and wait for its end."""
        self.send(ReleaseOrder())
        deadline = time.monotonic() + RELEASE_SECONDS
        while time.monotonic() < deadline and self._channel.is_open:
            await asyncio.sleep(0.01)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


async def beat_all(sessions: Callable[[], Collection[NodeSession]], lease: float) -> None:
    """Renew the leases of nodes, without end: agents end themselves without word for their lease."""
    while True:
        await asyncio.sleep(lease / 6)
        for session in sessions():
            session.send(PingOrder(time.time()))
