"""Member: the controller's side of a node, its channel and what has come over it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from allranks.cluster import Node
from allranks.node.frames import Stream

from .channel import Channel
from .clocks import Clock


class Member:
    """The controller's side of a node: channel, clock, when it was last heard."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.channel: Channel | None = None
        self.clock = Clock()
        self.heard = time.monotonic()
        self.silent = False
        self.lost = False
        self.known = False  # its guard has said hello once
        self.greeted = asyncio.Event()  # with `known`
        self.opening: asyncio.Task[None] | None = None
        self.waiting: list[Mapping[str, Any]] = []
        self.behind = False  # its output has found no room in the run directory since its last hello
        self.ends: Mapping[str, int] = {}  # where its streams end, once its ranks have
        self.shown: dict[Stream, int] = {}  # how far each stream has been displayed
        self.dropped: dict[Stream, int] = {}  # bytes that the node has dropped

    @property
    def open(self) -> bool:
        """Its guard can be spoken to."""
        return self.channel is not None and self.channel.is_open

    @property
    def is_coming(self) -> bool:
        """Its first channel is on its way."""
        return not self.known and self.opening is not None and not self.opening.done()
