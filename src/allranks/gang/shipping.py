"""Sends the archive of a synced tree to each node, as fast as each takes it (IO, no decisions).

A node says how much it has; never more than WINDOW is on its way, so that pings, and the word of a stop,
pass in between. After a broken connection the node says again where to go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from allranks.node.frames import TREE, Stream, pack_output
from allranks.plan.tree import CHUNK, WINDOW

from .channel import Channel

if TYPE_CHECKING:
    from allranks.backends.tree import Archive


class Shipper:
    """One archive on its way to all nodes."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._sent: dict[int, int] = {}

    def go_on(self, index: int, got: Mapping[str, Any], channel: Channel) -> None:
        """A node (by its index) has told how much it has: the next pieces."""
        have, size = int(got["bytes"]), self._archive.tree.packed
        at = have if got.get("begin") else max(have, self._sent.get(index, 0))
        while at < size and at - have < WINDOW:
            data = self._archive.read(at, min(CHUNK, size - at))
            channel.send_bytes(pack_output(Stream(TREE, 0, 0), at, data))
            at += len(data)
        self._sent[index] = at
