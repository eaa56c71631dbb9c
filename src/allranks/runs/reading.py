"""Reading a run's logs: merged in order of arrival, from a time on, or as they grow."""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allranks.runs.logs import Block, blocks, offset_at, offset_until

from .directory import RunDirectory, attempt_of, node_folder
from .regular import data_ranges, open_regular, size_of

CHUNK = 256 << 10
_HOLE = re.compile(rb"\0{4,}")  # output that never arrived: a line ends there
_RANK_LOG = re.compile(r"rank_(\d+)\.log\Z")


@dataclass(frozen=True)
class LogFile:
    """One rank's log of one attempt."""

    node: str
    rank: int
    attempt: int
    path: Path


class LogReader:
    """Follows the logs of a run; `fresh` gives what has come since the last call, `merged` the same in order."""

    def __init__(self, run: RunDirectory, nodes: tuple[str, ...] = (), ranks: tuple[int, ...] = ()) -> None:
        self._run = run
        self._nodes = nodes
        self._ranks = ranks
        self._printing = _printing_ranks(run) if ranks else {}
        self._offsets: dict[Path, int] = {}
        self._ends: dict[Path, int] | None = None  # of what arrived in time; None: no time was set
        self._names = node_folders(run)

    def files(self) -> list[LogFile]:
        """List the wanted logs that exist now, in order of attempt and rank."""
        files = []
        for path in (self._run.path / "logs").glob("**/rank_*.log"):
            match = _RANK_LOG.match(path.name)
            if match is None:
                continue
            log = LogFile(self._names.get(path.parent.name, path.parent.name), int(match[1]), attempt_of(path), path)
            if (not self._nodes or log.node in self._nodes) and (not self._ranks or self._is_of_wanted_rank(log)):
                files.append(log)
        return sorted(files, key=lambda f: (f.attempt, f.rank))

    def _is_of_wanted_rank(self, log: LogFile) -> bool:
        return any(log.rank <= rank < log.rank + self._printing.get(log.node, 1) for rank in self._ranks)

    def names_anew(self) -> None:
        """Read the nodes' names again: a run in a queue had none when this reader was made."""
        self._names = node_folders(self._run)

    def skip_to_end(self) -> None:
        """Only what comes from now on is fresh."""
        for log in self.files():
            self._offsets[log.path] = size_of(log.path)

    def skip_to_time(self, t: float) -> None:
        """Only what arrived at or after a time (unix seconds, to the second) is fresh."""
        for log in self.files():
            self._offsets[log.path] = offset_at(log.path, t)

    def stop_at_time(self, t: float) -> None:
        """Leave out what arrived after a time (unix seconds, to the second), logs that begin later too."""
        self._ends = {log.path: offset_until(log.path, t) for log in self.files()}

    def skip_to_last_lines(self, count: int) -> None:
        """Leave out what is before the last `count` lines of each log."""
        for log in self.files():
            begin = self._offsets.get(log.path, 0)
            self._offsets[log.path] = _start_of_last_lines(log.path, begin, count)

    def _read_on(self, log: LogFile, start: int, end: int) -> Iterator[bytes]:
        """Give what is fresh between two places of a log, up to where it ends for this reader."""
        if self._ends is not None:
            end = min(end, self._ends.get(log.path, 0))
        for at, data in _read(log.path, max(start, self._offsets.get(log.path, 0)), end):
            self._offsets[log.path] = at + len(data)
            yield _HOLE.sub(b"\n", data)

    def fresh(self) -> Iterator[tuple[str, int, bytes]]:
        """(node, rank, bytes) of everything new, one log after the other."""
        for log in self.files():
            for data in self._read_on(log, 0, size_of(log.path)):
                yield log.node, log.rank, data

    def merged(self) -> Iterator[tuple[float, str, int, bytes]]:
        """(time, node, rank, bytes) of everything new, in order of arrival as far as the indexes tell."""
        for t, _, log, block in heapq.merge(*map(_timed, self.files()), key=lambda item: item[:2]):
            for data in self._read_on(log, block.start, block.end):
                yield t, log.node, log.rank, data


def _printing_ranks(run: RunDirectory) -> dict[str, int]:
    """Count the ranks that print to one log, by node: those that another launcher starts print to its own."""
    document = run.read_run()
    roles = {role.name: role.launcher for role in document.roles} or {"": document.launcher}
    status = run.read_status()
    first = {node.name: node.ranks[0].rank for node in status.nodes if node.ranks}  # and all of them, or that alone
    after = [*sorted(first.values()), status.rank_count]
    counts = {name: next(rank for rank in after if rank > own) - own for name, own in first.items()}
    most = max(counts.values(), default=1)  # of a node that was replaced
    return {
        node.name: counts.get(node.name, most) for node in document.nodes if roles.get(node.role, "direct") != "direct"
    }


def _timed(log: LogFile) -> Iterator[tuple[float, int, LogFile, Block]]:
    return ((block.first, log.rank, log, block) for block in blocks(log.path))


def node_folders(run: RunDirectory) -> dict[str, str]:
    """Map the nodes' log folders to the names that the user has for them."""
    nodes = run.read_run().nodes
    return {node_folder(node.index, node.name): node.name for node in nodes if node.index is not None}


def _read(path: Path, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Bytes in pieces with where each begins, without holes; nothing where the log has been removed.

    No file stays open: there may be a thousand.
    """
    while start < end:
        try:
            with open_regular(path) as file:
                start = os.lseek(file.fileno(), start, os.SEEK_DATA)
                file.seek(start)
                data = file.read(min(CHUNK, end - start)) if start < end else b""
        except OSError:  # ENXIO: no data from there on
            return
        if not data:
            return
        yield start, data
        start += len(data)


def _start_of_last_lines(path: Path, begin: int, count: int) -> int:
    """Return where the last `count` lines begin that start at `begin` or later; a line without an end is one."""
    missing = count
    is_last = True
    for start, at in _pieces_from_the_end(path, begin):
        piece = b"".join(data for _, data in _read(path, start, at))
        if is_last and piece.endswith(b"\n"):
            missing += 1  # the end of the last line is not the start of another
        is_last = False
        place = len(piece)
        while missing and place >= 0:
            place = piece.rfind(b"\n", 0, place)
            missing -= place >= 0
        if not missing:
            return start + place + 1
    return begin


def _pieces_from_the_end(path: Path, begin: int) -> Iterator[tuple[int, int]]:
    try:
        with open_regular(path) as file:
            ranges = [(max(start, begin), end) for start, end in data_ranges(file.fileno()) if end > begin]
    except OSError:
        return
    for start, end in reversed(ranges):
        for at in range(end, start, -CHUNK):
            yield max(start, at - CHUNK), at
