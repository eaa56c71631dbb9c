"""The outlet: every stream a node has for the controller, and how far each has been sent.

Sources are spools (rank output) and plain files that something else writes (the node's log, NCCL's log,
metrics). The controller's log sizes are the only acknowledgement, so a new controller just says them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
from typing import Dict, List, Mapping, Optional, Tuple, Union

from allranks.protocol.frames import CHUNK, METRICS, RANK_LOG, Stream, output_head, stream_key
from allranks.protocol.messages import DroppedMessage

from .files import LEFT_FLAGS, names_in, open_left, remove_file
from .link import Link

# -- The spool: rank output on its way from the pipe to the controller -------------------------------------------------
# Bytes move from the pipe into segment files by splice(2), so none is ever only in a process's memory:
# agent or supervisor may die at any instant and the other goes on from the files' sizes. Files take a share
# of the disk's free space at most: while the controller is away, the spool only grows. Where
# they may not grow or the disk is full, memory (bounded) takes over; where that is full too, output is dropped
# and counted: neither blocks or fails a rank.

SEGMENT = 8 << 20
DIGITS = 16  # of the offset in a segment's name
LARGE = 1 << 20  # of a file that holds nothing but what the controller has
MEMORY_LIMIT = 16 << 20  # bytes of output held in memory by one agent while its disk is full
MEMORY_SEGMENT = 256 << 10  # of them in one file descriptor; what is acknowledged is freed in such pieces
MOVE = 1 << 20
FULL_PIPE = 64 << 10  # bytes that a pipe holds (pipe(7))
DISK_SHARE = 4  # the files of all streams of an agent take a quarter of what the disk would have free without them,
MOST_ON_DISK = 16 << 30  # and no more than this,
LEAST_ON_DISK = 16 << 20  # but this much in any case
ASKED_EVERY = 4 << 20  # bytes by which files grow between two looks at what the disk has free
_NONBLOCK = 2  # SPLICE_F_NONBLOCK
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)

_libc = ctypes.CDLL(None, use_errno=True)


def splice(source: int, target: int, count: int, offset: Optional[int] = None) -> int:
    """Move bytes within the kernel, to an offset of a file or to the end of a pipe; raise OSError.

    os.splice came with Python 3.10.
    """
    where = None if offset is None else ctypes.byref(ctypes.c_longlong(offset))
    moved = _libc.splice(source, None, target, where, ctypes.c_size_t(count), _NONBLOCK)
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

    @property
    def size(self) -> int:
        return self.end - self.start

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
            self.end = int(offset) + os.fstat(fd).st_size
            segment = _Segment(int(offset), fd, path, self.end)
            self._segments.append(segment)
            self._budget.on_disk += segment.size

    @property
    def start(self) -> int:
        """Offset of the first byte still held."""
        return self._segments[0].start if self._segments else self.end

    def pump(self, pipe: int) -> Optional[int]:
        """Move what the pipe holds now; return the bytes taken out of it, or None at its end."""
        taken = 0
        while True:
            try:
                moved, is_empty = self._move(pipe)
            except BlockingIOError:
                return taken
            if moved == 0:
                return taken or None
            taken += moved
            if taken >= MOVE or is_empty:
                return taken

    def _move(self, pipe: int) -> Tuple[int, bool]:
        """Move once; tell how much, and whether that was all the pipe had."""
        room = self._budget.room_on_disk(self._directory)
        self.bounded = room == 0
        segment = self._segment(in_memory=False) if room else None
        if segment is not None:
            most = min(SEGMENT - segment.size, room)
            try:
                moved = splice(pipe, segment.fd, most, segment.size)
                self._grew(segment, moved)
                return moved, moved < most
            except BlockingIOError:
                raise
            except OSError as error:  # the disk is full, or splice can't write to its file system
                if error.errno in _FULL:
                    if not segment.size:
                        self._segments.remove(segment)
                        segment.remove()
                    segment = None
        data = os.read(pipe, 65536)
        if segment is None and data and self._budget.left >= len(data):
            segment = self._segment(in_memory=True)
            if segment is not None:
                self._budget.left -= len(data)
        if segment is None:
            self.dropped += len(data)
        else:
            self._write(segment, data)
        return len(data), False

    def _segment(self, in_memory: bool) -> Optional[_Segment]:
        """Return the segment to write to, of a file or of memory; None where none can be made."""
        last = self._segments[-1] if self._segments else None
        most = MEMORY_SEGMENT if in_memory else SEGMENT
        if last is not None and (last.path is None) == in_memory and last.size < most:
            return last
        return self._new_segment(in_memory)

    def _new_segment(self, in_memory: bool) -> Optional[_Segment]:
        path = None if in_memory else os.path.join(self._directory, "%s.%0*d" % (self._name, DIGITS, self.end))
        try:
            if path is None:
                fd = os.memfd_create("allranks-spool")
            else:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        self._segments.append(_Segment(self.end, fd, path, self.end))
        return self._segments[-1]

    def _write(self, segment: _Segment, data: bytes) -> None:
        try:
            written = os.pwrite(segment.fd, data, segment.size)
        except OSError:
            written = 0
        self._grew(segment, written)
        self.dropped += len(data) - written

    def _grew(self, segment: _Segment, count: int) -> None:
        segment.end += count
        self.end = segment.end
        if segment.path is not None:
            self._budget.on_disk += count

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
        last = self._segments[-1] if self._segments else None
        if last is not None and last.path is not None and last.end <= offset and last.size >= LARGE:
            self._new_segment(in_memory=False)
        while len(self._segments) > 1 and self._segments[0].end <= offset:
            segment = self._segments.pop(0)
            if segment.path is None:
                self._budget.left += segment.size
            else:
                self._budget.on_disk -= segment.size
            segment.remove()


FILES_EVERY = 0.1  # seconds between two looks at files that others write, each of which costs a call of the system
SPOOL_NAME = re.compile("a([0-9]{1,5})_rank_([0-9]{1,10})")
MOST_RANK = 0xFFFFFFFF  # a frame's head has 32 bits for a rank,
MOST_ATTEMPT = 0xFFFF  # and 16 for an attempt


def spool_name(stream: Stream) -> str:
    """File name prefix of a rank's spool."""
    return "a%d_rank_%d" % (stream.attempt, stream.rank)


class _File:
    """A file that grows, written by another process; it may not exist yet, or be a directory.

    With `only_new` it begins behind what it has now: offsets count from there. Of a file that was emptied, as by a
    program that starts again, they go on where they were.
    """

    bounded = False

    def __init__(self, path: str, only_new: bool = False) -> None:
        self.path = path
        self.dropped = 0
        self._start = self._size() if only_new else 0
        self._longest = self._start
        self._given = 0  # offset of what was read last

    def _size(self) -> int:
        try:
            status = os.lstat(self.path)
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    @property
    def end(self) -> int:
        size = self._size()
        if size < self._longest:
            self._start = -self._given
        self._longest = size
        return max(0, size - self._start)

    def read(self, offset: int, count: int) -> Tuple[int, bytes]:
        offset = max(offset, -self._start)  # what was before the file was emptied is not there any more
        try:
            fd = os.open(self.path, os.O_RDONLY | LEFT_FLAGS)
        except OSError:
            return offset, b""
        try:
            data = os.pread(fd, count, self._start + offset)
            self._given = offset + len(data)
            return offset, data
        except OSError:  # EISDIR, or a file server's EIO and ESTALE
            return offset, b""
        finally:
            os.close(fd)

    def acknowledge(self, offset: int) -> None:
        """Nothing to free: the file is not ours."""


class Outlet:
    """All streams of a node; `fill` packs what the controller does not have yet."""

    def __init__(self, spool_dir: str, budget: Optional[Budget] = None) -> None:
        self._dir = spool_dir
        self._budget = budget or Budget()
        self._sources: Dict[Stream, Union[Spool, _File]] = {}
        self._sent: Dict[Stream, int] = {}
        self._have: Dict[str, int] = {}
        self._reported_drops: Dict[Stream, int] = {}
        self._files_due = 0.0

    def add_spool(self, stream: Stream) -> Spool:
        """Make the spool of a rank's output, or take it over."""
        spool = Spool(self._dir, spool_name(stream), self._budget)
        self._sources[stream] = spool
        self._sent.setdefault(stream, self._have.get(stream_key(stream), 0))
        return spool

    def add_existing_spools(self) -> None:
        """Take over every spool that lies in the directory, after the agent's death."""
        for name in sorted({entry.rpartition(".")[0] for entry in names_in(self._dir)}):
            match = SPOOL_NAME.fullmatch(name)
            if match is None:
                continue
            attempt, rank = map(int, match.groups())
            stream = Stream(RANK_LOG, rank, attempt)
            is_named = spool_name(stream) == name and rank <= MOST_RANK and attempt <= MOST_ATTEMPT
            if is_named and stream not in self._sources:
                self.add_spool(stream)

    def add_file(self, stream: Stream, path: str) -> None:
        """Follow a file under a stream's name, as long as this process lives.

        Of metrics only what comes from now on: a directory of several nodes or runs has what others have sent.
        """
        followed = self._sources.get(stream)
        if not isinstance(followed, _File) or followed.path != path:
            self._sources[stream] = _File(path, only_new=stream.kind == METRICS)
        self._sent.setdefault(stream, self._have.get(stream_key(stream), 0))

    def spool(self, stream: Stream) -> Optional[Spool]:
        """Return the spool of a stream, None where it has none."""
        source = self._sources.get(stream)
        return source if isinstance(source, Spool) else None

    def controller_has(self, sizes: Mapping[str, int]) -> None:
        """Begin to send to a controller that has so much of each log."""
        self._have = dict(sizes)
        self._reported_drops = {}
        self._sent = {stream: sizes.get(stream_key(stream), 0) for stream in self._sources}
        self.acknowledge(sizes)

    def acknowledge(self, sizes: Mapping[str, int]) -> None:
        """Free what the controller has on its disk."""
        for stream, source in self._sources.items():
            size = sizes.get(stream_key(stream))
            if size is not None:
                source.acknowledge(size)

    def fill(self, room: int, now: float = 0.0) -> Tuple[List[bytes], int]:
        """Return the pieces of frames with about `room` bytes of output, and how many; all streams take turns.

        `now` in seconds of a monotonic clock: while ranks print without a pause, files are looked at now and then.
        """
        parts: List[bytes] = []
        used = 0
        waiting = self._waiting(Spool)
        if not waiting or now >= self._files_due:
            self._files_due = now + FILES_EVERY
            waiting = self._waiting(_File) + waiting  # first: ranks may leave no room for another
        while waiting and used < room:
            still_waiting = []
            for stream in waiting:
                if used >= room:
                    break
                source = self._sources[stream] = self._sources.pop(stream)  # the last in turn
                at, data = source.read(self._sent[stream], CHUNK)
                if not data:
                    continue
                parts += (output_head(stream, at, len(data)), data)
                self._sent[stream] = at + len(data)
                used += len(data)
                if source.end > self._sent[stream]:
                    still_waiting.append(stream)
            waiting = still_waiting
        return parts, used

    def _waiting(self, kind: type) -> List[Stream]:
        """List the streams of a kind of source of which there is more than was sent."""
        sent = self._sent
        return [s for s, source in self._sources.items() if isinstance(source, kind) and source.end > sent[s]]

    @property
    def drained(self) -> bool:
        """True when everything there is has been put into frames."""
        return not self._waiting(Spool) and not self._waiting(_File)

    def new_drops(self) -> List[DroppedMessage]:
        """List streams of which more was dropped since the last call, or since a controller connected."""
        messages = []
        for stream, source in self._sources.items():
            if source.dropped > self._reported_drops.get(stream, 0):
                messages.append(DroppedMessage(*stream, source.dropped, source.bounded))
                self._reported_drops[stream] = source.dropped
        return messages

    def send_to(self, link: Link, now: float) -> None:
        """Queue what the controller does not have yet, as far as a connection has room for it."""
        if link.room <= 0:
            return
        frames, size = self.fill(link.room, now)
        if size:
            link.send_output(frames, size, now)
        for drop in self.new_drops():
            link.send(drop)

    def drops(self) -> Dict[str, int]:
        """Count the bytes dropped in all, by stream; for whoever comes after this process."""
        return {stream_key(stream): source.dropped for stream, source in self._sources.items() if source.dropped}

    def remember_drops(self, drops: Mapping[str, int]) -> None:
        """Take over what `drops` of a process before this one gave."""
        for stream, source in self._sources.items():
            source.dropped += drops.get(stream_key(stream), 0)

    def sizes(self) -> Dict[str, int]:
        """Where each stream ends now."""
        return {stream_key(stream): source.end for stream, source in self._sources.items()}
