"""Beginning and end of logs of any size (reads files, in bounded memory)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO

from allranks.runs.directory import RunDirectory, attempt_of
from allranks.runs.reading import node_folders
from allranks.runs.regular import open_dense

from .fold import last_state
from .record import Excerpt, LogName

CONTEXT = 64 << 10  # bytes before the end of a log that a redactor reads: a private key may have begun there
BLOCK = 4 << 20
HEAD = 4 << 10  # bytes of each log
TAIL = 12 << 10
_LOG = re.compile(r"(?:nccl_|ray_)?rank_(\d+)\.log\Z|node\.log\Z")


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


def excerpt(log: LogName, path: Path) -> Excerpt | None:
    """Read the beginning and the end of a log; None where it can't be read."""
    try:
        with open_dense(path) as file:
            return read_ends(log, file, HEAD, TAIL)
    except OSError:
        return None


def read_ends(log: LogName, file: IO[bytes], head: int, tail: int) -> Excerpt:
    """Read the first `head` and the last `tail` bytes of a file, in whole lines; all of one that has no more."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= head + tail:
        lines = _lines(file.read(size))
        return Excerpt(log, size, len(lines), lines)
    first = file.read(head)
    file.seek(0)
    total = _count(file)
    start = max(0, size - tail - CONTEXT)
    file.seek(start)
    end = file.read(tail + CONTEXT)
    if start:  # a line that began before is left out; of a progress bar that fills all of it the last state is shown
        end = end.partition(b"\n" if b"\n" in end else b"\r")[2]
    last = _lines(end)
    context = min(len(last), end.count(b"\n", 0, max(0, len(end) - tail)))
    return Excerpt(log, size, total, _lines(first[: first.rfind(b"\n") + 1]), last, context)


def _count(file: IO[bytes]) -> int:
    lines = 0
    last = b"\n"
    while data := file.read(BLOCK):
        lines += data.count(b"\n")
        last = data[-1:]
    return lines + (last != b"\n")


def _lines(data: bytes) -> list[str]:
    lines = data.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    return [last_state(raw).decode("utf-8", "replace") for raw in lines]
