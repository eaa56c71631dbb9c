"""How far all ranks were, every few seconds of a run: evidence/progress.jsonl, which the page of a run draws (IO).

The file is bounded. Where it has too many rows every second one goes, and from then on rows come half as often.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from allranks.protocol.codec import decode_each, document_line

from .directory import RunDirectory
from .documents import ProgressRow, StatusDocument
from .regular import append, open_regular, read_objects, replacing

NAME = "progress.jsonl"
EVERY = 2.0  # seconds between two rows at first
MOST_ROWS = 480
LEAST_ROWS = 60
MOST_FIGURES = 400_000  # of all rows: a row has two a rank
SIZE_LIMIT = 16 << 20  # bytes that are read
MOST_READ = 2 * MOST_ROWS  # rows that are read


def row_of(status: StatusDocument, t: float) -> ProgressRow | None:
    """Take a row from the state of a run; None where no rank has shown a step."""
    ranks = sorted((rank for node in status.nodes for rank in node.ranks), key=lambda rank: rank.rank)
    steps = tuple(rank.step for rank in ranks)
    lateness: tuple[float | None, ...] = tuple(rank.lateness_s for rank in ranks)
    is_measured = any(late is not None for late in lateness)
    if not is_measured and all(step is None for step in steps):
        return None
    return ProgressRow(round(t, 2), status.attempt, steps, lateness if is_measured else (), status.goodput)


class ProgressHistory:
    """The rows of a run; `note` is called as often as one likes."""

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.path / "evidence" / run.role / NAME
        self._rows: list[ProgressRow] | None = None
        self._every = EVERY

    def note(self, status: StatusDocument, t: float) -> None:
        """Add a row where one is due. `t`: unix seconds. What cannot be written is passed over."""
        if self._rows is None:
            self._rows = _read(self._path)
        if self._rows and 0 <= t - self._rows[-1].t < self._every:
            return
        row = row_of(status, t)
        if row is None:
            return
        self._rows.append(row)
        most = max(LEAST_ROWS, min(MOST_ROWS, MOST_FIGURES // (2 * max(1, len(row.steps)))))
        with contextlib.suppress(OSError):
            if len(self._rows) > most:
                self._rows = self._rows[::2]
                self._every *= 2
                self._replace(self._rows)
            else:
                self._append(row)

    def _append(self, row: ProgressRow) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        append(self._path, document_line(row).encode() + b"\n")

    def _replace(self, rows: Sequence[ProgressRow]) -> None:
        with replacing(self._path) as file:
            file.writelines(document_line(row).encode() + b"\n" for row in rows)


def read_progress(run: RunDirectory) -> list[ProgressRow]:
    """Read the rows of a run; lines that are none are left out."""
    return _read(run.path / "evidence" / run.role / NAME)


def _read(path: Path) -> list[ProgressRow]:
    try:
        with open_regular(path) as file:
            lines = read_objects(file.read(SIZE_LIMIT))
    except OSError:
        return []
    return decode_each(ProgressRow, list(islice(lines, MOST_READ)))
