"""Rows that the collective tests leave in a run's outputs (reads files; the rows come from other machines)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .directory import RunDirectory
from .regular import open_regular

KINDS = ("collective", "bandwidth", "link", "end")
LIMIT = 64 << 20  # bytes of a file that are read
Row = Mapping[str, Any]


def read_rows(run: RunDirectory) -> dict[str, list[Row]]:
    """Rows by kind, rank 0's first; lines that are none are left out."""
    found: dict[str, list[Row]] = {}
    for path in sorted((run.path / "outputs").glob("rank_*_metrics.jsonl")):
        for row in _rows(path):
            found.setdefault(str(row["kind"]), []).append(row)
    return found


def _rows(path: Path) -> list[Row]:
    try:
        with open_regular(path) as file:
            lines = file.read(LIMIT).splitlines()
    except OSError:
        return []
    rows: list[Row] = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("kind") in KINDS:
            rows.append(row)
    return rows
