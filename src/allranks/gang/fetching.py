"""The files of a run's outputs, from its nodes to here: listed, then sent from where an earlier fetch stopped (IO)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from allranks.cluster import Node
from allranks.protocol.codec import omit_empty
from allranks.protocol.frames import RANK_LOG, OutputFrame
from allranks.protocol.header import FetchHeader, WantedFile
from allranks.protocol.messages import ListedMessage, Message, OutputFile, SentMessage
from allranks.protocol.orders import HelloOrder
from allranks.runs.fetched import Arriving, Landing, NotAPath, is_wanted, parts_of

from .channel import NodeFailed
from .node_session import NodeSession
from .transport import Transport

AT_ONCE = 16  # nodes that send
LOOK = 1.0  # seconds after which it is seen that no more comes
SILENCE = 60.0  # seconds without a byte after which a node is given up
MOST_FILES = 250_000
BATCH = 5_000  # files that are asked for at once
GROWTH = 1 << 30  # bytes that a file may have grown by since it was listed
TRIES = 2  # of a file that changes while it is read


@omit_empty("refused", "failed")
@dataclass
class FetchedFiles:
    """What came of a node's files. `present` were here before, `skipped` are links and what is not a regular file.

    `refused` and `failed` are files with the reason.
    """

    files: int = 0
    bytes: int = 0
    present: int = 0
    skipped: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass
class NodeFetch:
    """The outputs of a node. `failure`: why it gave no more. `listed` are the files that the pattern matches.

    `is_kept`: the end of the run has named them. Else a node that has ended well left nothing.
    """

    node: Node
    root: str
    landing: Path
    is_kept: bool = True
    listed: list[OutputFile] = field(default_factory=list)
    came: FetchedFiles = field(default_factory=FetchedFiles)
    resumed_bytes: int = 0
    failure: str = ""
    remedy: str = ""


GONE = "it was there when the run ended: something on the node has removed it, or who may read it has changed"


class FetchFailed(Exception):
    """A node could not be asked, or gave up."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class _Question:
    """One question to a node, and its answer as it comes; `take` tells the end, and raises what is wrong with it."""

    def __init__(self, node: Node, transport: Transport, take: Callable[[OutputFrame | Message], bool]) -> None:
        self._node = node
        self._take = take
        self._heard = time.monotonic()
        self._over: asyncio.Future[FetchFailed | None] = asyncio.get_running_loop().create_future()
        self._session = NodeSession(node, transport, self._receive)

    def _receive(self, received: OutputFrame | Message) -> None:
        self._heard = time.monotonic()
        if self._over.done() or self._session.why:
            return
        try:
            if self._take(received):
                self._end()
        except FetchFailed as error:
            self._end(f"{self._node.name}: {error}", error.remedy)
        except OSError as error:
            self._end(f"cannot write what {self._node.name} sends: {error.strerror}")

    def _end(self, why: str = "", remedy: str = "") -> None:
        if not self._over.done():
            self._over.set_result(FetchFailed(why, remedy) if why else None)

    async def ask(self, header: FetchHeader, seconds: float) -> None:
        """Wait for the end of the answer; raise FetchFailed."""
        try:
            await self._session.connect(header, HelloOrder(), seconds)
            self._heard = time.monotonic()
            while not self._over.done():
                await asyncio.wait([self._over], timeout=LOOK)
                if self._session.why:
                    self._end(f"{self._node.name}: {self._session.why}")
                elif time.monotonic() - self._heard > SILENCE:
                    self._end(f"{self._node.name} has sent nothing for {SILENCE:g} s")
        except NodeFailed as error:
            raise FetchFailed(error.finding.message, error.finding.remedy) from None
        finally:
            self._session.close()
        failed = self._over.result()
        if failed is not None:
            raise failed


def read_list(message: OutputFrame | Message, into: NodeFetch, pattern: str | None) -> bool:
    """Take a part of a node's list; True at its end. Raise FetchFailed."""
    if isinstance(message, OutputFrame):
        raise FetchFailed("it sent bytes in the place of a list")
    if not isinstance(message, ListedMessage):
        raise FetchFailed("it did not answer the question that it was asked")
    if message.is_absent and not into.is_kept:
        return True
    if message.error:
        raise FetchFailed(message.error, GONE if into.is_kept else "")
    for file in message.files:
        if len(into.listed) + len(into.came.refused) >= MOST_FILES:
            raise FetchFailed(f"it lists more than {MOST_FILES:,} files")
        try:
            parts_of(file.path)
        except NotAPath as error:
            into.came.refused[repr(file.path[:200])] = str(error)
            continue
        if file.size >= 0 and is_wanted(file.path, pattern):
            into.listed.append(file)
    into.came.skipped += max(0, message.skipped)
    return message.last


class FileReceiver:
    """Takes the files that were wanted, one after the other, as the node was asked for them."""

    def __init__(self, into: NodeFetch, wanted: Sequence[WantedFile]) -> None:
        self._into = into
        self._wanted = wanted
        self._landing = Landing(into.landing)
        self._sizes = {file.path: file.size for file in into.listed}
        self._next = 0
        self._arriving: Arriving | None = None
        self.again: list[str] = []  # files that are not what the node has
        self._unwritten = ""  # why the present one finds no place

    def take(self, received: OutputFrame | Message) -> bool:
        """Take bytes, or the end of a file; True after the last. Raise FetchFailed or OSError."""
        if isinstance(received, OutputFrame):
            if (
                received.stream.kind != RANK_LOG
                or received.stream.rank != self._next
                or self._next >= len(self._wanted)
            ):
                raise FetchFailed("it sent bytes of another file than the one that was asked for")
            arriving = self._open()
            if arriving is not None:
                if received.offset != arriving.at:
                    raise FetchFailed("it sent bytes of a file in another order")
                if arriving.at + len(received.data) > self._sizes[self._wanted[self._next].path] + GROWTH:
                    raise FetchFailed("it sent far more of a file than it has listed")
                arriving.add(received.data)
                self._into.came.bytes += len(received.data)
            return False
        if not isinstance(received, SentMessage) or received.index_ != self._next or self._next >= len(self._wanted):
            raise FetchFailed("it did not answer the question that it was asked")
        self._finish(received)
        self._next += 1
        return self._next == len(self._wanted)

    def _open(self) -> Arriving | None:
        if self._arriving is None and not self._unwritten:
            wanted = self._wanted[self._next]
            try:
                self._arriving = self._landing.open(wanted.path, wanted.offset)
            except OSError as error:
                self._unwritten = error.strerror or "it cannot be written"
            else:
                if self._arriving.at != wanted.offset:
                    raise FetchFailed(f"{wanted.path} was changed here meanwhile")
        return self._arriving

    def _finish(self, message: SentMessage) -> None:
        into = self._into
        wanted = self._wanted[self._next]
        if message.error:
            into.came.failed[wanted.path] = message.error
        else:
            arriving = self._open()
            if arriving is None:
                into.came.failed[wanted.path] = self._unwritten
            elif arriving.finish(message.size, message.sha256):
                into.came.files += 1
                into.resumed_bytes += wanted.offset if message.size > wanted.offset else 0
                into.came.present += wanted.offset == message.size and wanted.offset > 0
            else:
                self.again.append(wanted.path)
        self.close()

    def close(self) -> None:
        """Leave what has come of a file as a piece that the next fetch goes on with."""
        if self._arriving is not None:
            self._arriving.close()
        self._arriving = None
        self._unwritten = ""


class Fetching:
    """All nodes of a run. `on_end` is called with each as it is done."""

    def __init__(
        self,
        nodes: Sequence[NodeFetch],
        transport: Transport,
        pattern: str | None,
        connect_timeout: float,
        on_end: Callable[[NodeFetch], None],
    ) -> None:
        self.nodes = nodes
        self._transport = transport
        self._pattern = pattern
        self._connect_timeout = connect_timeout
        self._on_end = on_end
        self._sending = asyncio.Semaphore(AT_ONCE)

    async def run(self, only_list: bool) -> None:
        """List the files of all nodes; fetch them unless `only_list`."""
        await asyncio.gather(*(self._one(node, only_list) for node in self.nodes))

    async def _one(self, node: NodeFetch, only_list: bool) -> None:
        async with self._sending:
            try:
                await self._list(node)
                if not only_list:
                    await self._fetch(node)
            except FetchFailed as error:
                node.failure = str(error)
                node.remedy = error.remedy
        self._on_end(node)

    async def _list(self, node: NodeFetch) -> None:
        question = _Question(node.node, self._transport, lambda part: read_list(part, node, self._pattern))
        await question.ask(FetchHeader(node.root), self._connect_timeout)
        node.listed.sort()

    async def _fetch(self, node: NodeFetch) -> None:
        sizes: Mapping[str, int] = {file.path: file.size for file in node.listed}
        again = list(sizes)
        for _ in range(TRIES):
            paths, again = again, []
            for start in range(0, len(paths), BATCH):
                again += await self._batch(node, paths[start : start + BATCH], sizes)
            if not again:
                return
        node.came.failed.update(
            dict.fromkeys(again, "it changed while it was read, or other bytes came than were sent")
        )

    async def _batch(self, node: NodeFetch, paths: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
        landing = Landing(node.landing)
        wanted = []
        for path in paths:
            have = landing.present(path)[0]
            wanted.append(WantedFile(path, have if have <= sizes[path] else 0))
        receiver = FileReceiver(node, wanted)
        question = _Question(node.node, self._transport, receiver.take)
        try:
            await question.ask(FetchHeader(node.root, wanted=tuple(wanted)), self._connect_timeout)
        finally:
            with contextlib.suppress(OSError):
                receiver.close()
        return receiver.again
