"""The conversation of a node with its controller: one connection, orders out of it, messages and output into it.

An agent has one, and where the agent has died its supervisor, or whoever serves what is left. What all of them answer
alike is answered here: hello, ping, and what the controller says of the output. Other orders are their owner's.
"""

from __future__ import annotations

import selectors
import time
from typing import Callable, List, Optional, Protocol, Tuple, Type, TypeVar, Union

from allranks.protocol.codec import DecodeError
from allranks.protocol.frames import TREE, Frame, FrameError, OutputFrame
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.messages import (
    DrainedMessage,
    FaultMessage,
    HelloMessage,
    Message,
    PongMessage,
    RemarkMessage,
    ReplacedMessage,
)
from allranks.protocol.orders import ORDERS, AckOrder, HelloOrder, Order, PingOrder, TakenOrder

from .link import UNREADABLE, Link, log
from .outlet import Outlet

Taken = Union[Order, OutputFrame]  # a piece of a shipped tree comes as a frame of output
Kind = TypeVar("Kind")
Row = Tuple[type, Callable[[Taken], None]]


def on(kind: Type[Kind], take: Callable[[Kind], None]) -> Row:
    """Give a row of a table: who takes orders of this kind. A wrong pair is a type error."""
    return kind, take  # type: ignore[return-value]  # the table is asked by the kind of the order


class Owner(Protocol):
    """What an agent, or who serves in its place, does for its session."""

    def obey(self, order: Taken) -> None:
        """Carry out an order; raise DecodeError where it does not fit."""

    def greet(self, order: HelloOrder) -> HelloMessage:
        """Say who this is and which attempt it has."""

    def drained(self) -> Optional[DrainedMessage]:
        """Say what is to be said once all output has been sent; None while more will come."""


class ControllerSession:
    """One controller at a time: a newer one takes the place of the older."""

    def __init__(self, selector: selectors.BaseSelector, outlet: Outlet, owner: Owner, lease: float) -> None:
        self.lease = lease  # seconds without a word after which ranks end
        self.heard = time.monotonic()
        self.greeted = False  # by any controller
        self._remarks: List[RemarkMessage] = []
        self.link: Optional[Link] = None
        self._selector = selector
        self._outlet = outlet
        self._owner = owner
        self._offsets_known = False  # of this connection: output may flow once it said how much it has
        self._drain_reported = False

    def rows(self) -> Tuple[Row, ...]:
        """Give the rows of orders that are carried out here."""
        return (
            on(HelloOrder, self._on_hello),
            on(PingOrder, lambda order: self.tell(PongMessage(order.sent, time.time()))),
            on(AckOrder, lambda order: self._outlet.acknowledge(order.sizes)),
            on(TakenOrder, self._on_taken),
        )

    # -- the connection ------------------------------------------------------------------------------

    def take_over(self, link: Link, frames: List[Frame]) -> None:
        """Take a controller that has greeted, in the place of the one before it."""
        self.drop(ReplacedMessage())
        self.link = link
        self._offsets_known = False
        self._selector.register(link.sock, selectors.EVENT_READ, self._on_link)
        self._take(link, frames)

    def drop(self, last_word: Optional[Message] = None) -> None:
        """Leave the connection, if there is one."""
        link = self.link
        if link is None:
            return
        self.link = None
        self._selector.unregister(link.sock)
        link.close(last_word)

    def _on_link(self) -> None:
        link = self.link
        assert link is not None
        try:
            frames = link.receive()
        except FrameError as error:
            log(str(error))
            self.drop(FaultMessage("protocol", str(error)))
            return
        except (EOFError, OSError):
            self.drop()
            return
        self._take(link, frames)

    def _take(self, link: Link, frames: List[Frame]) -> None:
        self.heard = time.monotonic()
        for frame in frames:
            if self.link is not link:
                return  # a message before has ended this connection
            if not isinstance(frame, OutputFrame):
                self._obey(frame)
            elif frame.stream.kind == TREE:
                self._owner.obey(frame)
            else:
                self._refuse("bytes of stream %d" % frame.stream.kind)

    def _obey(self, frame: JsonObject) -> None:
        """Decode an order and have it carried out; one that does not fit is refused, and nothing of it is done."""
        try:
            self._owner.obey(ORDERS.read(frame))
        except DecodeError as error:
            self._refuse("%s: %s" % (frame["type"][:20], error))

    def _refuse(self, what: str) -> None:
        self.tell(FaultMessage("protocol", UNREADABLE % what))

    # -- to the controller ---------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Queue a message, where there is a controller. Each that comes hears the remarks: they may have been lost."""
        if isinstance(message, RemarkMessage):
            self._remarks.append(message)
        if self.link is not None:
            self.link.send(message)

    def report_drained(self) -> None:
        """Report once more when all output has been sent."""
        self._drain_reported = False

    def send_output(self) -> None:
        """Send what the controller does not have yet, as far as the connection takes it."""
        link = self.link
        if link is None:
            return
        try:
            link.flush()
            if self._offsets_known:
                self._outlet.send_to(link, time.monotonic())
                self._tell_drained()
                link.flush()
            self._selector.modify(link.sock, link.events, self._on_link)
        except OSError:
            self.drop()

    def _tell_drained(self) -> None:
        if self._drain_reported or not self._outlet.drained:
            return
        message = self._owner.drained()
        if message is not None:
            self._drain_reported = True
            self.tell(message)

    # -- orders --------------------------------------------------------------------------------------

    def _on_hello(self, order: HelloOrder) -> None:
        """Greet, and let output flow from where the controller's logs end."""
        self.greeted = True
        self._offsets_known = True
        if order.lease is not None:
            self.lease = order.lease
        self._outlet.controller_has(order.have)
        self._drain_reported = False
        self.tell(self._owner.greet(order))
        if self.link is not None:
            for remark in self._remarks:
                self.link.send(remark)

    def _on_taken(self, order: TakenOrder) -> None:
        if self.link is not None:
            self.link.output_taken(order.output, time.monotonic())
