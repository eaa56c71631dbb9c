"""Open files that others may have put there: a pipe in the place of a log must not be waited for (IO)."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


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
