"""The time index beside a rank's log: when which bytes arrived, so that `logs --since` and merging can tell.

A line is `<unix seconds> <byte offset> [<until>]`: bytes from that offset on arrived from then on, all before
`until` (a second later where it is not said). A file that grows beyond a limit is thinned: of its older half
two lines become one. So the last half hour is exact to a second at least, and older times are coarser.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .regular import append, read_end, replacing

EVERY = 1.0  # seconds between entries
LIMIT = 128 << 10  # bytes of an index file


@dataclass(frozen=True)
class Block:
    """Bytes from `start` to before `end` arrived from `first` on, all before `last`."""

    start: int
    end: int
    first: float
    last: float


def index_path(log: Path) -> Path:
    """Return the file of a log's index."""
    return log.with_suffix(".idx")


def note(log: Path, now: float, offset: int) -> None:
    """Bytes from `offset` on arrive now. Never raises: without an index `--since` shows more, not less."""
    with contextlib.suppress(OSError):
        path = index_path(log)
        if append(path, f"{now:.3f} {offset}\n".encode()) > LIMIT:
            _thin(path)


def _thin(path: Path) -> None:
    entries = _entries(path)
    half = len(entries) // 2
    kept = [(*entries[i][:2], entries[min(i + 1, half - 1)][2]) for i in range(0, half, 2)] + entries[half:]
    with replacing(path) as file:
        file.writelines(f"{first:.3f} {start} {last:.3f}\n".encode() for first, start, last in kept)


def _entries(path: Path) -> list[tuple[float, int, float]]:
    """(first, offset, last) of each line that can be read; a torn one (full disk, SIGKILL) is left out."""
    try:
        lines = read_end(path, 2 * LIMIT).splitlines()
    except OSError:
        return []
    entries = []
    for line in lines:
        with contextlib.suppress(ValueError, IndexError):
            words = line.split()
            first = float(words[0])
            entries.append((first, int(words[1]), float(words[2]) if len(words) > 2 else first + EVERY))
    return entries


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
