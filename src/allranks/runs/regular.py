"""Open files that others may have put there, where a pipe must not be waited for, and replace files (IO)."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from allranks.agent.files import open_left
from allranks.agent.files import size_of as size_of
from allranks.protocol.jsontext import LIMIT, DecodeError, JsonObject, read_object

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ANYONE = 0o666  # the mode of a file that is for others too, less the umask


def read_end(path: Path, most: int) -> str:
    """Return the last `most` bytes of a regular file as text; empty where it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read(most).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def open_regular(path: Path, flags: int = 0) -> io.BufferedReader:
    """Open a regular file for reading; raise OSError for anything else, and never wait for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def data_ranges(descriptor: int) -> Iterator[tuple[int, int]]:
    """Give where a file has data, from its start on: a hole may be of terabytes, and takes no room on the disk."""
    end = 0
    while True:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError:  # ENXIO: no data from there on
            return
        yield start, end


def open_dense(path: Path, flags: int = 0) -> io.BufferedReader:
    """Open a regular file for reading as if it had no holes; raise OSError as `open_regular` does."""
    file = open_regular(path, flags)
    status = os.fstat(file.fileno())
    if status.st_blocks * 512 >= status.st_size:
        return file
    return io.BufferedReader(_Dense(file, list(data_ranges(file.fileno()))))


class _Dense(io.RawIOBase):
    """The data of a file with holes, one range behind the other."""

    def __init__(self, file: io.BufferedReader, ranges: list[tuple[int, int]]) -> None:
        self._file = file
        self._ranges = ranges
        self._starts = list(accumulate((end - start for start, end in ranges), initial=0))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._starts[-1]}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        number = bisect_right(self._starts, self._at) - 1
        if number >= len(self._ranges):
            return 0
        start, end = self._ranges[number]
        start += self._at - self._starts[number]
        count = os.preadv(self._file.fileno(), [memoryview(buffer)[: end - start]], start)
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def read_objects(data: bytes, most: int = LIMIT) -> Iterator[JsonObject]:
    """Give the JSON objects among lines, each of at most `most` bytes; a line that is none is left out."""
    for line in data.splitlines():
        try:
            yield read_object(line, most)
        except DecodeError:
            continue


def append(path: Path, lines: bytes) -> int:
    """Append lines to a file, on a line of their own where a full disk has cut the last one; return its bytes then.

    Raise OSError, also for a symbolic link or a pipe.
    """
    descriptor = open_left(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        return size + os.write(descriptor, b"\n" * is_torn + lines)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Write a file beside `path` that takes its place once all of it is on the disk; raise OSError.

    Another process that replaces it at the same time writes its own. Where writing fails the old file stays alone.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")  # others cannot know the name
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
