"""Beginning, end and telling lines of logs of any size (reads files, in bounded memory)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from allranks.runs.directory import RunDirectory, attempt_of
from allranks.runs.logdiagnosis import LogPart
from allranks.runs.reading import node_folders
from allranks.runs.regular import open_dense

from .fold import last_state
from .record import Excerpt, LogName, Piece

CONTEXT = 64 << 10  # bytes before the end of a log that a redactor reads: a private key may have begun there
BLOCK = 4 << 20
_LOG = re.compile(r"(?:nccl_|ray_)?rank_(\d+)\.log\Z|node\.log\Z")


@dataclass(frozen=True)
class Sizes:
    """How much of each log: bytes of its beginning and of its end, and telling lines between."""

    head: int = 4 << 10
    tail: int = 12 << 10
    telling: int = 60


def logs_of(run: RunDirectory) -> list[LogName]:
    """All logs, the last attempt first; in it the ranks in order, NCCL's and the nodes' own after them."""
    names = node_folders(run)
    roles = {node.name: node.role for node in run.read_run().nodes}
    logs = []
    for path in (run.path / "logs").glob("**/*.log"):
        match = _LOG.match(path.name)
        if match is None or path.is_symlink() or not path.is_file():
            continue
        rank = int(match[1]) if match[1] else None
        file = path.relative_to(run.path).as_posix()
        node = names.get(path.parent.name, path.parent.name)
        logs.append(LogName(file, node, rank, attempt_of(path), roles.get(node, "")))
    return sorted(logs, key=lambda log: (-log.attempt, "/rank" not in log.file, log.rank or 0, log.file))


def excerpt(log: LogName, path: Path, parts: Sequence[LogPart] | None, sizes: Sizes) -> Excerpt | None:
    """None where the log at `path` can't be read; `parts` is what a scan kept of it."""
    try:
        with open_dense(path) as file:
            size = file.seek(0, os.SEEK_END)
        pieces, lines = _whole(path) if size <= sizes.head + sizes.tail else _pieces(path, size, parts, sizes)
    except OSError:
        return None
    return Excerpt(log, size, lines, tuple(pieces))


def _whole(path: Path) -> tuple[list[Piece], int]:
    with open_dense(path) as file:
        lines = _lines(file.read())
    return _beginning(lines), len(lines)


def _beginning(lines: Sequence[str]) -> list[Piece]:
    if not lines:
        return []
    return [Piece(1, tuple(lines))]


def _pieces(path: Path, size: int, parts: Sequence[LogPart] | None, sizes: Sizes) -> tuple[list[Piece], int]:
    """Beginning, telling lines, end. `Part.lines` counts a last line without newline, as `_count` does."""
    total = sum(part.lines for part in parts) if parts is not None else _count(path)
    start = max(0, size - sizes.tail - CONTEXT)
    with open_dense(path) as file:
        head = file.read(sizes.head)
        file.seek(start)
        end = file.read(sizes.tail + CONTEXT)
    head = head[: head.rfind(b"\n") + 1]
    first = _lines(head)
    if start:
        end = end[end.find(b"\n") + 1 :] if b"\n" in end else b""
    last = _lines(end)
    context = min(len(last), end.count(b"\n", 0, max(0, len(end) - sizes.tail)))
    middle = range(len(first) + 1, total - len(last) + context + 1)
    pieces = _beginning(first)
    pieces += _telling(_kept(parts or ()), middle, sizes.telling)
    if len(last) > context:
        pieces.append(Piece(total - len(last) + 1, tuple(last), context))
    return pieces, total


def _kept(parts: Iterable[LogPart]) -> Iterator[tuple[int, bytes]]:
    before = 0
    for part in parts:
        yield from ((before + number + 1, line) for number, line in part.kept)
        before += part.lines


def _telling(lines: Iterable[tuple[int, bytes]], within: range, most: int) -> list[Piece]:
    chosen = [(number, raw) for number, raw in lines if number in within]
    if len(chosen) > most:
        chosen = chosen[: most // 2] + chosen[-(most - most // 2) :]
    if not chosen:
        return []
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(chosen)) if b[0] != a[0] + 1), len(chosen)]
    return [Piece(chosen[a][0], tuple(_text(raw) for _, raw in chosen[a:b])) for a, b in pairwise(starts)]


def _count(path: Path) -> int:
    lines = 0
    last = b"\n"
    with open_dense(path) as file:
        while data := file.read(BLOCK):
            lines += data.count(b"\n")
            last = data[-1:]
    return lines + (last != b"\n")


def _lines(data: bytes) -> list[str]:
    lines = data.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    return [_text(raw) for raw in lines]


def _text(raw: bytes) -> str:
    return last_state(raw).decode("utf-8", "replace")
