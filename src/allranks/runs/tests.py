"""Rows that the collective tests leave in a run's outputs (reads files; the rows come from other machines)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from allranks.protocol.jsontext import Json

from .directory import RunDirectory
from .regular import open_regular, read_objects

KINDS = ("collective", "bandwidth", "link", "end")
LIMIT = 64 << 20  # bytes of a file that are read
Row = Mapping[str, Json]


def read_rows(run: RunDirectory) -> dict[str, list[Row]]:
    """Read rows by kind, rank 0's first; lines that are not rows are left out."""
    rows: dict[str, list[Row]] = {}
    for path in run.metrics_files():
        with contextlib.suppress(OSError), open_regular(path) as file:
            for row in read_objects(file.read(LIMIT), LIMIT):
                if row.get("kind") in KINDS:
                    rows.setdefault(str(row["kind"]), []).append(row)
    return rows
