"""LogWriter: the bytes of all streams into their files, at the offsets the nodes say."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from allranks.protocol.frames import (
    METRICS,
    NCCL_LOG,
    NODE_LOG,
    RANK_LOG,
    RAY_LOG,
    STACKS,
    Stream,
    stream_key,
)
from allranks.protocol.jsontext import DecodeError
from allranks.protocol.run_facts import Fact, LogContinued, Stamped, of_kind

from .directory import OF_LOGS, RunDirectory, attempt_folder, attempt_of_folder, node_folder
from .regular import append, read_end, replacing, size_of

# -- The time index beside a rank's log: when which bytes arrived ------------------------------------------------------
# A line is `<unix seconds> <byte offset> [<until>]`: bytes from that offset on arrived from then on, all before
# `until` (a second later where it is not said). A log that came in one piece has none: its own time says when. A file
# that grows beyond a limit is thinned: of its older half two lines become one. So the last half hour is exact to a
# second at least, and older times are coarser.

EVERY = 1.0  # seconds between entries
LIMIT = 128 << 10  # bytes of an index file


def index_path(log: Path) -> Path:
    """Return the file of a log's index."""
    return log.with_suffix(".idx")


def note(index: Path, *arrivals: tuple[float, int]) -> None:
    """Write when bytes from which offset on came. Never raises: without an index `--since` shows more, not less."""
    with contextlib.suppress(OSError):
        if append(index, "".join(f"{t:.3f} {offset}\n" for t, offset in arrivals).encode()) > LIMIT:
            _thin(index)


def _thin(path: Path) -> None:
    entries = _entries(path)
    half = len(entries) // 2
    kept = [(*entries[i][:2], entries[min(i + 1, half - 1)][2]) for i in range(0, half, 2)] + entries[half:]
    with replacing(path) as file:
        file.writelines(f"{first:.3f} {start} {last:.3f}\n".encode() for first, start, last in kept)


def _entries(path: Path) -> list[tuple[float, int, float]]:
    """(first, offset, last) of each line that can be read; a torn one (full disk, SIGKILL) is left out."""
    entries = []
    for line in read_end(path, 2 * LIMIT).splitlines():
        with contextlib.suppress(ValueError, IndexError):
            words = line.split()
            first = float(words[0])
            entries.append((first, int(words[1]), float(words[2]) if len(words) > 2 else first + EVERY))
    return entries


class Block(NamedTuple):
    """Bytes from `start` to before `end` arrived from `first` on, all before `last`."""

    start: int
    end: int
    first: float
    last: float


def blocks(log: Path) -> Iterator[Block]:
    """Cut a log where its index says; a log without one arrived when it was written last."""
    try:
        status = log.stat()
    except OSError:
        return
    entries = [e for e in _entries(index_path(log)) if e[1] < status.st_size]
    if not entries or entries[0][1] > 0:
        end = entries[0][1] if entries else status.st_size
        first = entries[0][0] if entries else status.st_mtime
        yield Block(0, end, first, first + EVERY)
    ends = [start for _, start, _ in entries[1:]] + [status.st_size]
    for (first, start, last), end in zip(entries, ends, strict=False):
        if end > start:
            yield Block(start, end, first, last)


def offset_at(log: Path, t: float) -> int:
    """Return the first byte that may have arrived at `t` or later; the log's end where none did."""
    end = 0
    for block in blocks(log):
        if block.last > t:
            return block.start
        end = block.end
    return end


def offset_until(log: Path, t: float) -> int:
    """Return the end of what may have arrived before `t`; 0 where all arrived later."""
    end = 0
    for block in blocks(log):
        if block.first >= t:
            break
        end = block.end
    return end


OPEN_FILES = 256
MOST_GAPS = 1 << 30  # bytes of holes in one node's logs
SHARED = (METRICS, STACKS)  # one file a rank over all attempts, whichever node the rank is on
CLOSED = -1  # in the place of a descriptor


@dataclass(eq=False, slots=True)  # 32,768 ranks may have several each
class _Log:
    """A stream of a node: the file that has it, and where its bytes belong there."""

    fd: int = CLOSED
    end: int | None = None  # where the next byte belongs; None until the file was looked at
    base: int | None = None  # where in the file the stream begins; None: at 0, unless it turns out that it does not
    indexed: float = 0.0  # when the index was written last,
    arrived: float | None = None  # or when the first piece came, which is not in it yet

    def size(self) -> int:
        """Return how much of the stream is here; 0 until its file was looked at."""
        if self.end is None:
            return 0
        return self.end - (self.base or 0)


class LogWriter:
    """One a controller."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._logs: defaultdict[int, dict[Stream, _Log]] = defaultdict(dict)  # by node
        self._open: OrderedDict[_Log, None] = OrderedDict()  # the one that was written last comes last
        self._fresh: dict[int, set[Stream]] = {}  # streams that have grown, by node
        self._newcomers: set[int] = set()
        self._holders: dict[int, int] = {}  # the node that has a rank, by their numbers
        self._attempts: set[int] | None = None  # that have a folder; None until it was looked for what is there
        self._gaps: Counter[int] = Counter()  # bytes that never arrived and are holes, by node
        self.failure = ""  # why the last write that failed did

    def write(self, node_index: int, node_name: str, stream: Stream, offset: int, data: bytes) -> bool:
        """Write what is new of `data`; False where it cannot be stored (what fits is), with `failure` saying why.

        Raise DecodeError where more is missing before it than a node may leave out: every reader reads holes too.
        """
        try:
            return self._write(node_index, node_name, stream, offset, data)
        except OSError as error:  # a full disk, a quota, no descriptors, an I/O error: the run goes on in any case
            self.failure = error.strerror or str(error)
            return False

    def _write(self, node_index: int, node_name: str, stream: Stream, offset: int, data: bytes) -> bool:
        log = self._logs[node_index].get(stream)
        if log is None or log.fd == CLOSED:
            log = self._opened(node_index, node_name, stream)
        else:
            self._open.move_to_end(log)
        offset += log.base or 0
        end = log.end or 0
        skip = max(0, end - offset)
        if skip >= len(data) and data:
            return True
        if offset > end:
            if self._gaps[node_index] + offset - end > MOST_GAPS:
                raise DecodeError(f"output {offset - end} bytes behind what came before")
            self._gaps[node_index] += offset - end
            end = offset
        if stream.kind == RANK_LOG:
            self._index(log, node_index, node_name, stream, end)
        self._fresh.setdefault(node_index, set()).add(stream)
        _append(log, data[skip:] if skip else data, end)
        return True

    def _opened(self, node_index: int, node_name: str, stream: Stream) -> _Log:
        log = self._logs[node_index].setdefault(stream, _Log())
        if self._attempts is not None and stream.kind in OF_LOGS:
            self._attempts.add(stream.attempt)
        if len(self._open) >= OPEN_FILES:
            self._close(next(iter(self._open)))
        file = self._run.log_file(node_index, node_name, *stream)
        log.fd = _open(file)
        self._open[log] = None  # at once: a step below that fails must not lose the descriptor
        if log.end is None:
            try:
                there = os.fstat(log.fd)
            except OSError:
                self._close(log)
                raise
            log.end = there.st_size
            if there.st_size and stream.kind == RANK_LOG and not index_path(Path(file)).exists():
                log.arrived = there.st_mtime  # one piece, of the controller before this one
        if node_index in self._newcomers and stream.kind in SHARED and log.base is None:
            self._begin_at(node_index, stream, log.end)
        return log

    def _close(self, log: _Log) -> None:
        if log.fd == CLOSED:
            return
        descriptor = log.fd
        log.fd = CLOSED  # given up first: Linux closes it also where close(2) fails
        del self._open[log]
        os.close(descriptor)

    def _index(self, log: _Log, node_index: int, node_name: str, stream: Stream, offset: int) -> None:
        """Note when which byte arrived, at most once a second: `logs --since` reads it.

        The first piece is noted with the second: most ranks of a large run print once and are quiet for long.
        """
        now = time.time()
        if offset == 0:
            log.arrived = now
            return
        arrivals = []
        if log.arrived is not None:
            arrivals.append((log.arrived, 0))
            log.indexed = log.arrived
            log.arrived = None
        if not 0 <= now - log.indexed < EVERY:
            log.indexed = now
            arrivals.append((now, offset))
        if arrivals:
            note(index_path(self._run.log_path(node_index, node_name, *stream)), *arrivals)

    def begin_anew(self, node_index: int, node_name: str) -> None:
        """Go on with another agent of a node: what it sends of a file that is there comes after what is in it."""
        self._newcomers.add(node_index)
        self._fresh.pop(node_index, None)  # grown by what the former agent sent
        logs = self._logs[node_index]
        for stream, log in list(logs.items()):
            if stream.kind in (*SHARED, NODE_LOG) and log.end is not None:
                with contextlib.suppress(OSError):
                    self._close(log)
                del logs[stream]
        stream = Stream(NODE_LOG, 0, 0)
        self._begin_at(node_index, stream, size_of(self._run.log_path(node_index, node_name, *stream)))

    def deal(self, ranks: Mapping[int, Iterable[int]]) -> None:
        """Know which ranks each node has in an attempt, by its index.

        What a node sends of a rank that another one had comes behind what is there: the file is one for all attempts.
        """
        holders = {rank: index for index, own in ranks.items() for rank in own}
        for rank, index in holders.items():
            if self._holders.get(rank, index) != index:
                for kind in SHARED:
                    self._go_on_behind(index, Stream(kind, rank, 0))
        self._holders.update(holders)

    def _go_on_behind(self, node_index: int, stream: Stream) -> None:
        """Begin behind all that a file has, with what is new of a node that may have written to it before."""
        log = self._logs[node_index].setdefault(stream, _Log())
        sent = log.size()
        with contextlib.suppress(OSError):
            self._close(log)
        log.end = size_of(self._run.log_path(node_index, "", *stream))
        self._begin_at(node_index, stream, log.end - sent)

    def _begin_at(self, node_index: int, stream: Stream, base: int) -> None:
        """Let a stream begin behind what its file has, and note that for a controller that takes over."""
        self._logs[node_index].setdefault(stream, _Log()).base = base
        self._run.append(Stamped("", time.time(), None, LogContinued(node_index, stream_key(stream), base)))

    def resume(self, facts: Iterable[Stamped[Fact]]) -> None:
        """Take over what the last controller has noted."""
        for noted in of_kind(facts, LogContinued):
            event = noted.fact
            parts = event.stream.split("/")
            if len(parts) == len(Stream._fields) and all(part.isdecimal() for part in parts):
                self._logs[event.index_].setdefault(Stream(*map(int, parts)), _Log()).base = event.at
                self._newcomers.add(event.index_)

    def sizes(self, node_index: int, node_name: str) -> dict[str, int]:
        """How much of each of a node's streams is here, as its files say."""
        sizes: dict[str, int] = {}
        top = self._run.path / "logs"
        folder = node_folder(node_index, node_name)
        logs = self._logs[node_index]
        if self._attempts is None:
            self._attempts = {0, *map(attempt_of_folder, top.glob("attempt_*"))}
        for attempt in sorted(self._attempts):
            for path in (top / attempt_folder(attempt) / folder).glob("*.log"):
                stream = _stream_of(path.name, attempt)
                if stream is not None:
                    known = logs.get(stream)
                    sizes[stream_key(stream)] = path.stat().st_size - ((known.base or 0) if known else 0)
        for stream, log in logs.items():
            if stream.kind not in OF_LOGS and log.end is not None:
                sizes[stream_key(stream)] = log.size()
        return sizes

    def fresh_sizes(self, node_index: int) -> dict[str, int]:
        """Sizes of the streams that have grown since the last call."""
        logs = self._logs[node_index]
        return {stream_key(stream): logs[stream].size() for stream in self._fresh.pop(node_index, ())}

    def close(self) -> None:
        """Close all files."""
        for log in list(self._open):
            with contextlib.suppress(OSError):
                self._close(log)


def _append(log: _Log, data: bytes, at: int) -> None:
    log.end = at
    written = os.pwrite(log.fd, data, at)
    log.end += written
    while written < len(data):
        more = os.pwrite(log.fd, memoryview(data)[written:], log.end)
        written += more
        log.end += more


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:  # the first of its folder
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        return os.open(path, flags, 0o600)


def _stream_of(name: str, attempt: int) -> Stream | None:
    stem = name.removesuffix(".log")
    if stem == "node":
        if attempt != 0:
            return None
        return Stream(NODE_LOG, 0, 0)
    whose, _, digits = stem.rpartition("rank_")
    kind = {"": RANK_LOG, "nccl_": NCCL_LOG, "ray_": RAY_LOG}.get(whose)
    if kind is None or not digits.isdecimal():
        return None
    return Stream(kind, int(digits), attempt)
