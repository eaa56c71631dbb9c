"""Made-up archives of a synced tree, and a node that takes them in."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allranks.agent import receiver
from allranks.agent.forked_tasks import Work
from allranks.agent.receiver import TreeReceiver
from allranks.protocol.codec import decode, encode
from allranks.protocol.frames import TREE, OutputFrame, Stream
from allranks.protocol.messages import MESSAGES, ShippedMessage
from allranks.protocol.orders import ShipOrder

STREAM = Stream(TREE, 0, 0)


class Member:
    """One entry of a made-up archive."""

    def __init__(self, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, to: str = "") -> None:
        self.info = tarfile.TarInfo(name)
        self.info.type, self.info.linkname, self.info.mode, self.data = kind, to, 0o600, data
        self.info.size = len(data)


def link(name: str, to: str) -> Member:
    return Member(name, kind=tarfile.SYMTYPE, to=to)


def tar_of(*members: Member) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", encoding="utf-8", errors="surrogateescape") as tar:
        for member in members:
            tar.addfile(member.info, io.BytesIO(member.data))
    return gzip.compress(out.getvalue())


def order_of(data: bytes, files: int = 100, size: int = 1 << 20) -> dict[str, Any]:
    sha256 = hashlib.sha256(data).hexdigest()
    return {"type": "ship", "sha256": sha256, "packed": len(data), "bytes": size, "files": files}


def listing(folder: Path) -> dict[str, Any]:
    """All that is below a directory: kind, content, executable bit."""
    found: dict[str, Any] = {}
    for place, folders, files in os.walk(os.fsencode(folder)):
        for name in folders + files:
            path = os.path.join(place, name)
            key = os.fsdecode(os.path.relpath(path, os.fsencode(folder)))
            if os.path.islink(path):
                found[key] = os.readlink(path)
            elif os.path.isdir(path):
                found[key] = "directory"
            else:
                with open(path, "rb") as file:
                    found[key] = (file.read(), bool(os.stat(path).st_mode & 0o100))
    return found


class Node:
    """A receiver with the task done at once, and what it said, as it travels."""

    def __init__(self, node_dir: Path) -> None:
        self.said: list[dict[str, Any]] = []
        self.tasks: list[tuple[Callable[[], ShippedMessage], Callable[[ShippedMessage | None, str], None]]] = []
        self.receiver = TreeReceiver(str(node_dir), lambda m: self.said.append(MESSAGES.write(m)), self._run_task)

    def _run_task(self, work: Work[ShippedMessage], done: Callable[[ShippedMessage | None, str], None]) -> bool:
        assert work.name and work.seconds >= receiver.SECONDS and work.kind is ShippedMessage
        self.tasks.append((work.function, done))
        return True

    def ship(self, order: dict[str, Any]) -> None:
        """A tree is announced."""
        self.receiver.ship(decode(ShipOrder, order))

    def work(self) -> None:
        """What the forked task does; its answer is JSON."""
        ((function, done),) = self.tasks
        self.tasks.clear()
        done(decode(ShippedMessage, json.loads(json.dumps(encode(function())))), "")

    def kill(self) -> None:
        """The task is killed while it unpacks."""
        ((_, done),) = self.tasks
        self.tasks.clear()
        done(None, "unpacking the tree ended without a result")

    def chunk(self, offset: int, data: bytes) -> None:
        self.receiver.chunk(OutputFrame(STREAM, offset, data))

    @property
    def last(self) -> dict[str, Any]:
        return self.said[-1]
