"""A synced tree on the node: the archive arrives in pieces, a task unpacks it into the node directory.

Who sends it may start any program here, so that its sha256 is all that is looked at. Links come last, as no path may
lead through one.
"""

from __future__ import annotations

import errno
import json
import os
from functools import partial
from typing import Callable, Iterator, List, Optional, Tuple, Union

from allranks.protocol.frames import OutputFrame
from allranks.protocol.messages import GotMessage, ShippedMessage
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import ShipOrder

from .files import create_file, digest_of, open_left, remove_file, remove_tree, text_of_errno, write_all
from .forked_tasks import Work

MANIFEST = "tree.json"
MOST = 1 << 30  # bytes of an archive that a node takes at all
BLOCK = 4096  # what a small file takes on a disk
PART = 1 << 20
SECONDS = 60.0
# slow enough for a shared disk
BYTES_A_SECOND = 2 << 20
FILES_A_SECOND = 200

Unpacked = Callable[[Optional[ShippedMessage], str], None]
RunTask = Callable[["Work[ShippedMessage]", Unpacked], bool]


class TreeReceiver:
    """Takes the archive in. `reply` sends to the controller where there is one; it asks again after a break."""

    def __init__(
        self, node_dir: str, reply: Callable[[Union[GotMessage, ShippedMessage]], None], run_task: RunTask
    ) -> None:
        self._dir = node_dir
        self._reply = reply
        self._run_task = run_task
        self._archive = os.path.join(node_dir, "tree.tar.gz")
        self._target = NodeFiles(node_dir).tree
        self._order: Optional[ShipOrder] = None
        self._answer: Optional[ShippedMessage] = None
        self._fd = -1
        self._have = 0
        self._is_interrupted = False
        self._announced: Optional[ShipOrder] = None  # while an unpacking is being interrupted

    def ship(self, order: ShipOrder) -> None:
        """Say how much of a tree is here that is announced, for the first time or again over a new connection."""
        if self._is_interrupted:
            self._announced = order
            return
        if self._order is None:
            self._order = order
            try:
                self._begin(order.packed, order.bytes, order.files)
            except OSError as error:
                self._give_up(error)
                return
        if self._answer is not None:
            self._reply(self._answer)
        elif self._fd >= 0:
            self._reply(GotMessage(self._have, True))

    def _begin(self, packed: int, unpacked: int, files: int) -> None:
        if not 0 < packed <= MOST:
            raise OSError(errno.EFBIG, "an archive of %d bytes" % packed)
        disk = os.statvfs(self._dir)
        free = disk.f_bavail * disk.f_frsize
        needed = packed + unpacked + files * BLOCK // 2
        if free < needed:
            raise OSError(errno.ENOSPC, "%d MB needed, %d MB free" % (-(-needed >> 20), free >> 20))
        if disk.f_files and disk.f_favail < files:
            raise OSError(errno.ENOSPC, "%d files, %d inodes free" % (files, disk.f_favail))
        self._fd = create_file(self._archive)

    def chunk(self, frame: OutputFrame) -> None:
        """Take a piece of the archive. One that does not go on from the last is of a connection that broke."""
        order = self._order
        if order is None or self._fd < 0 or frame.offset != self._have:
            return
        try:
            if self._have + len(frame.data) > order.packed:
                raise OSError(errno.EFBIG, "more arrived than was announced")
            write_all(self._fd, frame.data)
        except OSError as error:
            self._give_up(error)
            return
        self._have += len(frame.data)
        if self._have < order.packed:
            self._reply(GotMessage(self._have))
            return
        self._close()
        seconds = SECONDS + order.bytes / BYTES_A_SECOND + order.files / FILES_A_SECOND
        work = partial(unpack, self._archive, self._target, order)
        self._run_task(Work("unpacking the tree", work, ShippedMessage, seconds), self._unpacked)

    def interrupt(self) -> None:
        """Expect that the end of an attempt kills the unpacking: the next one asks for the tree again, and it comes."""
        self._is_interrupted = self._order is not None and self._fd < 0 and self._answer is None

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def _give_up(self, error: OSError) -> None:
        if self._fd >= 0:
            self._close()
            os.unlink(self._archive)
        self._finish(_failure(error, self._target))

    def _unpacked(self, message: Optional[ShippedMessage], error: str) -> None:
        was_interrupted = self._is_interrupted
        self._is_interrupted = False
        if message is not None or not was_interrupted:
            self._finish(message or ShippedMessage(self._target, error=error))
            return
        # As if no tree had come; what the interrupted unpacking left goes when the next one begins.
        remove_file(self._archive)
        self._order = None
        self._have = 0
        announced = self._announced
        self._announced = None
        if announced is not None:
            self.ship(announced)

    def _finish(self, message: ShippedMessage) -> None:
        self._answer = message
        self._reply(message)


def unpack(archive: str, target: str, order: ShipOrder) -> ShippedMessage:
    """Fill the target, or say why there is none; the archive is removed in either case."""
    try:
        sha256 = digest_of(archive)
        if sha256 != order.sha256:
            return ShippedMessage(target, sha256, error="the archive arrived damaged (sha256 %s)" % sha256)
        if os.path.lexists(target):  # of an unpacking that was interrupted
            remove_tree(target)
        files = extract(archive, target)
        with open(os.path.join(os.path.dirname(target), MANIFEST), "w") as file:
            json.dump(dict(_states(target)), file)  # what lies there before the program runs, for `has_results`
        return ShippedMessage(target, sha256, files)
    except OSError as error:
        remove_tree(target)
        return _failure(error, target)
    finally:
        os.unlink(archive)


def _states(target: str) -> Iterator[Tuple[str, List[int]]]:
    """Name, and size and time of change, of every file but the byte code that Python leaves."""
    for folder, folders, files in os.walk(target):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue  # removed since its directory was read
            yield os.path.relpath(path, target), [status.st_size, status.st_mtime_ns]


def has_results(node_dir: str) -> bool:
    """Whether the program wrote into its tree (checkpoints, logs): that is not thrown away with the directory."""
    target = NodeFiles(node_dir).tree
    if not os.path.isdir(target):
        return False
    try:
        with open(open_left(os.path.join(node_dir, MANIFEST))) as file:
            shipped = dict(json.load(file))
    except FileNotFoundError:
        return False  # it was never unpacked whole, no program ran there
    except (OSError, TypeError, ValueError):
        return True
    return any(shipped.get(name) != state for name, state in _states(target))


def _failure(error: OSError, target: str) -> ShippedMessage:
    text = text_of_errno(error)
    if error.strerror and error.strerror != text:
        text += " (%s)" % error.strerror
    if error.filename:
        text += ": " + os.fsdecode(error.filename)
    return ShippedMessage(target, error=text, errno=error.errno)


def extract(archive: str, target: str) -> int:
    """Make `target` and fill it; return the number of files and links. Raise OSError."""
    import tarfile  # late: 10 ms that a run without --sync does not need

    links = []
    files = 0
    os.mkdir(target, 0o700)
    with tarfile.open(archive, "r|gz", encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar:
            path = os.path.join(os.fsencode(target), _encoded(member.name))
            if member.isdir():
                os.makedirs(path, 0o700, exist_ok=True)
                continue
            files += 1
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            if member.issym():
                links.append((_encoded(member.linkname), path))
                continue
            source = tar.extractfile(member)
            assert source is not None
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, member.mode & 0o700)
            with open(fd, "wb", 0) as file:
                for part in iter(partial(source.read, PART), b""):
                    write_all(file.fileno(), part)
    for to, path in links:
        os.symlink(to, path)
    return files


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
