"""Read files that others write, as far as a limit: /proc and /sys, settings of the machine, what a program leaves."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from functools import partial
from typing import List, Optional, Union

LIMIT = 64 << 10  # bytes
# How a file is opened that a program may have replaced: no FIFO waits for its other end, no link leads elsewhere.
LEFT_FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
PART = 64 << 10  # bytes of one read
F_SETPIPE_SZ = 1031  # fcntl(2); `fcntl` has the name since Python 3.10


def read_file(path: str, limit: int = LIMIT) -> bytes:
    """Give the first bytes of a file; raise OSError.

    Without a file object, which asks four more system calls of each file: an end looks at every process of the machine.
    """
    data = b""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        while len(data) < limit:
            part = os.read(fd, min(limit - len(data), PART))
            if not part:
                break
            data += part
    finally:
        os.close(fd)
    return data


def read_bytes(path: str, limit: int = LIMIT) -> bytes:
    """Give the first bytes of a file; none where it cannot be read."""
    try:
        return read_file(path, limit)
    except OSError:
        return b""


def read_ends(path: str, first: int, last: int) -> bytes:
    """Give the first and the last bytes of a file, each whole where it has no more; none where it cannot be read.

    Where something is left out between them a line ends there, and the one after it is cut short.
    """
    try:
        with open(open_left(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= first + last:
                return file.read(first + last)
            data = file.read(first)
            file.seek(size - last)
            return data + b"\n" + file.read(last)
    except OSError:
        return b""


def read_text(path: str, limit: int = LIMIT) -> str:
    """Give the text of a file without surrounding blanks; none where it cannot be read."""
    return read_bytes(path, limit).decode("utf-8", "replace").strip()


def open_left(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a file that a program may have replaced; raise OSError where it is not a regular file."""
    fd = os.open(path, flags | LEFT_FLAGS, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd


def create_file(path: str) -> int:
    """Make a file of this user's alone, for writing; raise OSError where anything is there, a link too (open(2))."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def read_left(path: str, limit: int = LIMIT) -> str:
    """Give the text of a file that a program has left; none where it cannot be read."""
    try:
        with open(open_left(path), "rb") as file:
            return file.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def read_left_from(path: str, start: int, limit: int) -> bytes:
    """Give the last `limit` bytes of a file that a program has left, from `start` on; none where it cannot be read.

    Of a file that has become shorter since, all counts. A first line that is cut is left out."""
    try:
        with open(open_left(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            if start > size:
                start = 0
            begin = max(start, size - limit)
            file.seek(begin)
            data = file.read(limit)
    except OSError:
        return b""
    if begin > start:
        data = data.partition(b"\n")[2]
    return data


def read_link(path: str) -> str:
    """Give the target of a symbolic link; none where it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def size_of(path: Union[str, "os.PathLike[str]"]) -> int:
    """Give the bytes of a file; 0 where it cannot be read."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def digest_of(path: str) -> str:
    """Give the sha256 of a file; raise OSError."""
    import hashlib  # late: the start of ranks is not to wait for it

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for part in iter(partial(file.read, 1 << 20), b""):
            digest.update(part)
    return digest.hexdigest()


def remove_file(path: str) -> None:
    """Remove a file, as far as that is possible."""
    try:
        os.unlink(path)
    except OSError:
        pass


def remove_tree(path: str) -> None:
    """Remove a directory with all that is in it, as far as that is possible."""
    for name in names_in(path):
        remove_file(os.path.join(path, name))
    try:
        os.rmdir(path)
    except OSError:
        import shutil  # late: with its archive formats 3 ms, and most directories of a node hold files alone

        shutil.rmtree(path, ignore_errors=True)


def find_program(name: str, path: Optional[str] = None) -> Optional[str]:
    """Find a program on a PATH, that of this process by default, as shutil.which does."""
    if "/" in name:
        directories = [""]
    else:
        directories = (os.environ.get("PATH", os.defpath) if path is None else path).split(":")
    for directory in directories:
        place = os.path.join(directory, name)
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place
    return None


def names_in(path: str) -> List[str]:
    """List a directory; nothing where it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def append(path: str, data: bytes) -> None:
    """Add to a file of evidence; a full disk loses it."""
    try:
        with open(open_left(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            file.write(data)
    except OSError:
        pass


def write_all(fd: int, data: bytes) -> None:
    """Write to a descriptor that blocks; raise OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def grow_pipe(fd: int, size: int) -> None:
    """Let a pipe hold `size` bytes; the kernel may refuse, and what is a file or socket stays as it is."""
    try:
        fcntl.fcntl(fd, F_SETPIPE_SZ, size)
    except OSError:
        pass


def text_of_errno(error: OSError) -> str:
    """Return the system's text for an error's number; libraries put theirs in its place. Its own where it has none."""
    if error.errno:
        return os.strerror(error.errno)
    return str(error)
