"""The door of a node: its Unix socket, where a connection counts once a controller's hello has come over it.

Any process of the user may connect there: a rank, a backup tool. One that says nothing, drips or sends something else
costs a descriptor for some seconds, and the controller that is connected hears nothing of it.
"""

from __future__ import annotations

import selectors
import socket
import time
from functools import partial
from typing import Callable, Dict, List, Optional

from allranks.protocol.codec import DecodeError
from allranks.protocol.frames import PROTOCOL, Frame, FrameError, OutputFrame
from allranks.protocol.messages import FaultMessage
from allranks.protocol.orders import ORDERS, HelloOrder, PingOrder, pack_order

from .link import UNREADABLE, Link

MOST = 8  # connections without a hello at a time: another one takes the place of the oldest
SECONDS = 10.0  # a controller sends its hello with the bytes that connect it
KNOCK_SECONDS = 5.0  # in which whoever serves a door refuses any other first frame


class Door:
    """Accept connections of a listener; `greeted` is called with one and the frames that have come, the hello first."""

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        greeted: Callable[[Link, List[Frame]], None],
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._selector = selector
        self._greeted = greeted
        self._callers: Dict[Link, float] = {}  # in the order of their coming, with when
        selector.register(listener, selectors.EVENT_READ, self.on_connection)

    def on_connection(self) -> None:
        """Accept what waits at the socket."""
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._callers) >= MOST:
            self._leave(next(iter(self._callers)))
        link = Link(sock)
        self._callers[link] = time.monotonic()
        self._selector.register(sock, selectors.EVENT_READ, partial(self.on_caller, link))

    def on_caller(self, link: Link) -> None:
        """Read what has come, and let a controller in."""
        try:
            frames = link.receive()
            if not frames:
                return
            trouble = _trouble(frames[0])
        except (EOFError, OSError):
            self._leave(link)
            return
        except (FrameError, DecodeError) as error:
            trouble = UNREADABLE % error
        if trouble:
            self._leave(link, FaultMessage("protocol", trouble))
        else:
            self._forget(link)
            self._greeted(link, frames)

    def look(self, now: float) -> None:
        """Close what has not greeted in time; `now` in seconds of a monotonic clock."""
        for link, since in list(self._callers.items()):
            if now - since > SECONDS:
                self._leave(link)

    def _leave(self, link: Link, last_word: Optional[FaultMessage] = None) -> None:
        self._forget(link)
        link.close(last_word)

    def _forget(self, link: Link) -> None:
        del self._callers[link]
        self._selector.unregister(link.sock)


def _trouble(frame: Frame) -> str:
    """Say why a first frame opens no door. Empty for a hello of this protocol. Raise DecodeError."""
    order = ORDERS.read(frame) if not isinstance(frame, OutputFrame) else None
    if not isinstance(order, HelloOrder):
        return "the first frame is not a hello"
    if order.protocol != PROTOCOL:
        return "this agent speaks protocol %d, the controller %d" % (PROTOCOL, order.protocol)
    return ""


def answers(path: str) -> bool:
    """Tell whether a process serves the socket of a node: it refuses a first frame that is not a hello."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(KNOCK_SECONDS)
        try:
            sock.connect(path)
            sock.sendall(pack_order(PingOrder(time.time())))
            return bool(sock.recv(1))
        except OSError:
            return False
