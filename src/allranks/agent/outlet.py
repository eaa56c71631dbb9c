"""The outlet: every stream a node has for the controller, and how far each has been sent.

Sources are spools (rank output) and plain files that something else writes (the node's log, NCCL's log,
metrics). The controller's log sizes are the only acknowledgement, so a new controller just says them.
"""

from __future__ import annotations

import os
import stat
from typing import Dict, List, Mapping, Optional, Tuple, Union

from allranks.protocol.frames import CHUNK, METRICS, RANK_LOG, Stream, pack_output, stream_key
from allranks.protocol.messages import DroppedMessage

from .link import Link
from .spool import Budget, Spool, spool_names

LONGEST_NAME = 64
MOST_RANK = 0xFFFFFFFF  # a frame's head has 32 bits for a rank,
MOST_ATTEMPT = 0xFFFF  # and 16 for an attempt


def spool_name(stream: Stream) -> str:
    """File name prefix of a rank's spool."""
    return "a%d_rank_%d" % (stream.attempt, stream.rank)


def parse_spool_name(name: str) -> Optional[Stream]:
    """Return the stream of a name of `spool_name`; None for another file."""
    attempt, _, rank = name.partition("_rank_")
    if not (attempt[1:].isdecimal() and rank.isdecimal() and len(name) < LONGEST_NAME):
        return None
    stream = Stream(RANK_LOG, int(rank), int(attempt[1:]))
    if spool_name(stream) != name or stream.rank > MOST_RANK or stream.attempt > MOST_ATTEMPT:
        return None
    return stream


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
        if not stat.S_ISREG(status.st_mode):
            return 0
        return status.st_size

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
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
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

    def close(self) -> None:
        """Nothing is kept open."""


class Outlet:
    """All streams of a node; `fill` packs what the controller does not have yet."""

    def __init__(self, spool_dir: str, budget: Optional[Budget] = None) -> None:
        self._dir = spool_dir
        self._budget = budget or Budget()
        self._sources: Dict[Stream, Union[Spool, _File]] = {}
        self._sent: Dict[Stream, int] = {}
        self._have: Dict[str, int] = {}
        self._reported_drops: Dict[Stream, int] = {}

    def add_spool(self, stream: Stream) -> Spool:
        """Make the spool of a rank's output, or take it over."""
        spool = Spool(self._dir, spool_name(stream), self._budget)
        self._sources[stream] = spool
        self._sent.setdefault(stream, self._have.get(stream_key(stream), 0))
        return spool

    def add_existing_spools(self) -> None:
        """Take over every spool that lies in the directory, after the agent's death."""
        for name in spool_names(self._dir):
            stream = parse_spool_name(name)
            if stream is not None and stream not in self._sources:
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
        if isinstance(source, Spool):
            return source
        return None

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

    def fill(self, room: int) -> Tuple[bytes, int]:
        """Return frames with about `room` bytes of output at most, and their size; all streams take turns."""
        parts: List[bytes] = []
        used = 0
        waiting = [stream for stream, source in self._sources.items() if source.end > self._sent[stream]]
        while waiting and used < room:
            still_waiting = []
            for stream in waiting:
                if used >= room:
                    break
                source = self._sources[stream] = self._sources.pop(stream)  # the last in turn
                at, data = source.read(self._sent[stream], CHUNK)
                if not data:
                    continue
                parts.append(pack_output(stream, at, data))
                self._sent[stream] = at + len(data)
                used += len(data)
                if source.end > self._sent[stream]:
                    still_waiting.append(stream)
            waiting = still_waiting
        return b"".join(parts), used

    @property
    def drained(self) -> bool:
        """True when everything there is has been put into frames."""
        return all(source.end <= self._sent[stream] for stream, source in self._sources.items())

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
        frames, size = self.fill(link.room)
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
