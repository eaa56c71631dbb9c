"""Rows that the collective tests leave in a run's outputs (reads files; the rows come from other machines)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from allranks.protocol.jsontext import Json

from .directory import RunDirectory
from .regular import open_regular, read_objects

KINDS = ("collective", "bandwidth", "link", "end")
LIMIT = 64 << 20  # bytes of a file that are read
Row = Mapping[str, Json]


def read_rows(run: RunDirectory) -> dict[str, list[Row]]:
    """Read rows by kind, rank 0's first; lines that are not rows are left out."""
    rows: dict[str, list[Row]] = {}
    for path in sorted((run.path / "outputs").glob("rank_*_metrics.jsonl")):
        for row in _rows(path):
            rows.setdefault(str(row["kind"]), []).append(row)
    return rows


def _rows(path: Path) -> list[Row]:
    try:
        with open_regular(path) as file:
            data = file.read(LIMIT)
    except OSError:
        return []
    return [row for row in read_objects(data, LIMIT) if row.get("kind") in KINDS]
