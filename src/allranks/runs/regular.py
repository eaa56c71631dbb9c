"""Open files that others may have put there, where a pipe must not be waited for, and replace files (IO)."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from allranks.agent.files import open_left

ANYONE = 0o666  # the mode of a file that is for others too, less the umask


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 where it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_end(path: Path, most: int) -> bytes:
    """Return the last `most` bytes of a regular file; raise OSError."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def open_regular(path: Path, flags: int = 0) -> BinaryIO:
    """Open a regular file for reading; raise OSError for anything else, and never wait for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


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
