"""The spool: rank output on its way from the pipe to the controller.

Bytes move from the pipe into segment files by splice(2), so none is ever only in a process's memory:
agent or supervisor may die at any instant and the other goes on from the files' sizes. Files take a share
of the disk's free space at most: while the controller is away, the spool only grows. Where
they may not grow or the disk is full, memory (bounded) takes over; where that is full too, output is dropped
and counted: neither blocks or fails a rank.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import List, Optional, Set, Tuple

from .files import names_in, open_left, remove_file

SEGMENT = 8 << 20
DIGITS = 16  # of the offset in a segment's name
LARGE = 1 << 20  # of a file that holds nothing but what the controller has
MEMORY_LIMIT = 16 << 20  # bytes of output held in memory by one agent while its disk is full
MEMORY_SEGMENT = 256 << 10  # of them in one file descriptor; what is acknowledged is freed in such pieces
MOVE = 1 << 20
DISK_SHARE = 4  # the files of all streams of an agent take a quarter of what the disk would have free without them,
MOST_ON_DISK = 16 << 30  # and no more than this,
LEAST_ON_DISK = 16 << 20  # but this much in any case
ASKED_EVERY = 4 << 20  # bytes by which files grow between two looks at what the disk has free
_NONBLOCK = 2  # SPLICE_F_NONBLOCK
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)

_libc = ctypes.CDLL(None, use_errno=True)


def _splice(source: int, target: int, offset: int, count: int) -> int:
    where = ctypes.c_longlong(offset)
    moved = _libc.splice(source, None, target, ctypes.byref(where), ctypes.c_size_t(count), _NONBLOCK)
    if moved < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(moved)


_libc.splice.restype = ctypes.c_ssize_t


class _Segment:
    """A run of the stream's bytes in one file (or memory): [start, end)."""

    def __init__(self, start: int, fd: int, path: Optional[str], end: int) -> None:
        self.start = start
        self.fd = fd
        self.path = path
        self.end = end

    def remove(self) -> None:
        os.close(self.fd)
        if self.path is not None:
            remove_file(self.path)


class Budget:
    """What the streams of one agent share: memory that is `left`, and room for files (`disk` bytes; None: a share)."""

    def __init__(self, limit: int = MEMORY_LIMIT, disk: Optional[int] = None) -> None:
        self.left = limit
        self.on_disk = 0
        self._disk = disk
        self._may_reach = 0  # bytes on disk for which there was room when it was last asked

    def room_on_disk(self, directory: str) -> int:
        """Bytes by which the files may grow now; 0 on a full disk."""
        if self.on_disk >= self._may_reach:
            room = max(0, self.limit(directory) - self.on_disk)
            self._may_reach = self.on_disk + min(room, ASKED_EVERY)
        return self._may_reach - self.on_disk

    def limit(self, directory: str) -> int:
        """Bytes that files may take in all."""
        if self._disk is not None:
            return self._disk
        try:
            disk = os.statvfs(directory)
        except OSError:
            return LEAST_ON_DISK
        share = (disk.f_bavail * disk.f_frsize + self.on_disk) // DISK_SHARE
        return max(LEAST_ON_DISK, min(share, MOST_ON_DISK))


class Spool:
    """One stream's bytes between `start` (all before is acknowledged) and `end`.

    `dropped` counts bytes that found room nowhere; `bounded`: it was the share of the disk that was used up, not the
    disk. `directory/name.OFFSET` are the segments.
    """

    def __init__(self, directory: str, name: str, budget: Budget) -> None:
        self._directory = directory
        self._name = name
        self._budget = budget
        self._segments: List[_Segment] = []
        self.dropped = 0
        self.bounded = False
        self.end = 0
        self._reopen()

    def _reopen(self) -> None:
        """Take over what another process of this node left: the files' sizes say where it ended.

        A file with another name is not ours, and is left alone."""
        prefix = self._name + "."
        for entry in sorted(e for e in os.listdir(self._directory) if e.startswith(prefix)):
            offset = entry[len(prefix) :]
            if not (len(offset) == DIGITS and offset.isdecimal()):
                continue
            path = os.path.join(self._directory, entry)
            try:
                fd = open_left(path, os.O_RDWR)
            except OSError:
                continue  # a program has put something else there
            start = int(offset)
            size = os.fstat(fd).st_size
            self._segments.append(_Segment(start, fd, path, start + size))
            self._budget.on_disk += size
        if self._segments:
            self.end = self._segments[-1].end

    @property
    def start(self) -> int:
        """Offset of the first byte still held."""
        return self._segments[0].start if self._segments else self.end

    def pump(self, pipe: int) -> Optional[int]:
        """Move what the pipe holds now; return the bytes taken out of it, or None at its end."""
        taken = 0
        while True:
            try:
                moved = self._move(pipe)
            except BlockingIOError:
                return taken
            if moved == 0:
                return taken or None
            taken += moved
            if taken >= MOVE:
                return taken

    def _move(self, pipe: int) -> int:
        room = self._budget.room_on_disk(self._directory)
        self.bounded = room == 0
        segment = self._room() if room else None
        if segment is not None:
            try:
                used = segment.end - segment.start
                moved = _splice(pipe, segment.fd, used, min(SEGMENT - used, room))
                self._grew(segment, moved)
                return moved
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    raise BlockingIOError from None
                if error.errno not in _FULL:
                    return self._copy(pipe, segment)
                if segment.end == segment.start:
                    self._segments.remove(segment)
                    segment.remove()
        return self._drop_or_remember(pipe)

    def _copy(self, pipe: int, segment: _Segment) -> int:
        """For file systems that splice can't write to."""
        data = os.read(pipe, 65536)
        self._write(segment, data)
        return len(data)

    def _drop_or_remember(self, pipe: int) -> int:
        data = os.read(pipe, 65536)
        if not data:
            return 0
        segment = self._memory() if self._budget.left >= len(data) else None
        if segment is None:
            self.dropped += len(data)
        else:
            self._budget.left -= len(data)
            self._write(segment, data)
        return len(data)

    def _last(self) -> Optional[_Segment]:
        if not self._segments:
            return None
        return self._segments[-1]

    def _memory(self) -> Optional[_Segment]:
        """Return the memory segment to write to; None where no descriptor is left."""
        last = self._last()
        if last is not None and last.path is None and last.end - last.start < MEMORY_SEGMENT:
            return last
        try:
            segment = _Segment(self.end, os.memfd_create("allranks-spool"), None, self.end)
        except OSError:
            return None
        self._segments.append(segment)
        return segment

    def _write(self, segment: _Segment, data: bytes) -> None:
        try:
            written = os.pwrite(segment.fd, data, segment.end - segment.start)
        except OSError:
            written = 0
        self._grew(segment, written)
        self.dropped += len(data) - written

    def _grew(self, segment: _Segment, count: int) -> None:
        segment.end += count
        self.end = segment.end
        if segment.path is not None:
            self._budget.on_disk += count

    def _room(self) -> Optional[_Segment]:
        """Return the segment to write to; None where no file can be made."""
        last = self._last()
        if last is not None and last.path is not None and last.end - last.start < SEGMENT:
            return last
        return self._new_file()

    def _new_file(self) -> Optional[_Segment]:
        path = os.path.join(self._directory, "%s.%0*d" % (self._name, DIGITS, self.end))
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        segment = _Segment(self.end, fd, path, self.end)
        self._segments.append(segment)
        return segment

    def read(self, offset: int, count: int) -> Tuple[int, bytes]:
        """Up to `count` bytes from `offset` on, and where they start: what was removed is skipped."""
        for segment in self._segments:
            if offset < segment.end:
                at = max(offset, segment.start)
                return at, os.pread(segment.fd, min(count, segment.end - at), at - segment.start)
        return offset, b""

    def acknowledge(self, offset: int) -> None:
        """Remove whole segments before `offset`: the controller has them.

        One file stays, as its name says how far the stream is; a large one gives way to an empty one."""
        last = self._last()
        if last is not None and last.path is not None and last.end <= offset and last.end - last.start >= LARGE:
            self._new_file()
        while len(self._segments) > 1 and self._segments[0].end <= offset:
            segment = self._segments.pop(0)
            if segment.path is None:
                self._budget.left += segment.end - segment.start
            else:
                self._budget.on_disk -= segment.end - segment.start
            segment.remove()

    def close(self) -> None:
        """Close the files and leave them."""
        for segment in self._segments:
            os.close(segment.fd)
        self._segments = []


def spool_names(directory: str) -> Set[str]:
    """Names of the streams that have segments in a spool directory."""
    return {entry.rsplit(".", 1)[0] for entry in names_in(directory)}
