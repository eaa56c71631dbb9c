"""Where fetched files land: below one directory, whatever a node names, and so that what was cut off can go on (IO)."""

from __future__ import annotations

import contextlib
import filecmp
import fnmatch
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_PATH = 4096  # bytes of a path (PATH_MAX)
MOST_NAME = 255  # bytes of a name (NAME_MAX)
CHUNK = 1 << 20
PART = ".part"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


class NotAPath(Exception):
    """A path that a node named is not one below the directory; the text says why."""


def parts_of(path: str) -> list[str]:
    """Return the names of a path below a directory; raise NotAPath for anything that could lead elsewhere."""
    parts = path.split("/")
    encoded = path.encode("utf-8", "surrogatepass")
    if not path or len(encoded) > MOST_PATH or any(part in ("", ".", "..") for part in parts):
        raise NotAPath("expected a path below the outputs, without ..")
    if _UNPRINTABLE.search(path) or any("\ud800" <= character <= "\udfff" for character in path):
        raise NotAPath("its name has control characters or is not UTF-8")
    if any(len(part.encode()) > MOST_NAME for part in parts):
        raise NotAPath(f"expected names of at most {MOST_NAME} bytes")
    return parts


def is_wanted(path: str, pattern: str | None) -> bool:
    """Tell whether a pattern matches: all of the path where it has a slash, else any name in it."""
    if pattern is None:
        return True
    if "/" in pattern:
        return fnmatch.fnmatchcase(path, pattern)
    return any(fnmatch.fnmatchcase(part, pattern) for part in path.split("/"))


class Landing:
    """One directory for the files of a node. Links in it are not followed."""

    def __init__(self, top: Path) -> None:
        self._top = top

    @contextlib.contextmanager
    def _directory(self, parts: list[str], makes: bool) -> Iterator[int]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if makes:
            self._top.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._top, flags)
        try:
            for part in parts[:-1]:
                if makes:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=descriptor)
                inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def present(self, path: str) -> tuple[int, bool]:
        """Return the bytes that are here of a file, and whether they are the file itself, not a piece of it."""
        parts = parts_of(path)
        with contextlib.suppress(OSError), self._directory(parts, makes=False) as directory:
            for name, is_whole in ((parts[-1], True), (part_name(parts[-1]), False)):
                with contextlib.suppress(OSError):
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        return status.st_size, is_whole
        return 0, False

    def open(self, path: str, offset: int) -> Arriving:
        """Open a file to go on at `offset`, from what is here; raise OSError or NotAPath."""
        parts = parts_of(path)
        name = parts[-1]
        part = part_name(name)
        whole = hashlib.sha256()
        with self._directory(parts, makes=True) as directory:
            held = os.dup(directory)
        try:
            if offset and self.present(path)[1]:
                os.rename(name, part, src_dir_fd=held, dst_dir_fd=held)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(part, flags, 0o600, dir_fd=held)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(22, "a file of another kind is in its place")
        except OSError:
            os.close(held)
            raise
        os.truncate(descriptor, offset)
        at = 0
        while at < offset:
            data = os.pread(descriptor, min(CHUNK, offset - at), at)
            if not data:
                break
            whole.update(data)
            at += len(data)
        return Arriving(name, held, descriptor, at, whole)


def part_name(name: str) -> str:
    """Return the name of a file that has not come as a whole."""
    if len(name.encode()) + len(PART) + 1 > MOST_NAME:
        name = hashlib.sha256(name.encode()).hexdigest()
    return f".{name}{PART}"


class Arriving:
    """A file on its way; `at` is where the next byte belongs."""

    def __init__(self, name: str, directory: int, descriptor: int, at: int, whole: hashlib._Hash) -> None:
        self._name = name
        self._directory = directory
        self._descriptor = descriptor
        self._whole = whole
        self.at = at

    def add(self, data: bytes) -> None:
        """Write bytes that follow those that are here; raise OSError."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._descriptor, rest, self.at)
            self._whole.update(rest[:written])
            self.at += written
            rest = rest[written:]

    def finish(self, size: int, sha256: str) -> bool:
        """Give the file its name where it is what the node has; False where it is not, and nothing of it stays."""
        is_same = self.at == size and self._whole.hexdigest() == sha256
        part = part_name(self._name)
        if is_same:
            os.replace(part, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        else:
            os.unlink(part, dir_fd=self._directory)
        self.close()
        return is_same

    def close(self) -> None:
        """Close it; what has come stays as a piece."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            os.close(self._directory)
            self._descriptor = -1


def merge(trees: Sequence[tuple[Path, Sequence[str]]], into: Path) -> list[str]:
    """Put the files of several directories into one, as links where the disk has them; return the paths that differ.

    Of a path that differs the first directory's file is taken. Raise OSError.
    """
    taken: dict[str, Path] = {}
    differing: list[str] = []
    for top, paths in trees:
        for path in paths:
            source = top / path
            if path not in taken:
                try:
                    _put(source, into / path)
                except (FileExistsError, NotADirectoryError, IsADirectoryError):  # a file here, a directory there
                    differing.append(path)
                else:
                    taken[path] = source
            elif not filecmp.cmp(taken[path], source, shallow=False):
                differing.append(path)
    return sorted(set(differing))


def _put(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = place.with_name(part_name(place.name))
    new.unlink(missing_ok=True)
    try:
        os.link(source, new, follow_symlinks=False)
    except OSError:  # a disk without links, or another one
        shutil.copyfile(source, new, follow_symlinks=False)
    os.replace(new, place)
    new.unlink(missing_ok=True)  # rename(2): two links of one file both stay
