"""allranks overlap: does training hide its communication behind computation? From traces of torch.profiler."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from allranks.errors import UsageError
from allranks.overlap.document import document
from allranks.overlap.measure import Overlap, measure
from allranks.overlap.stream import BrokenTrace
from allranks.overlap.trace import Trace, read_trace
from allranks.overlap.verdict import percent, say_bytes, say_time

from .options import BEHAVIOUR, option

PIECE = 1 << 20  # characters read at once
TRACES = ("*.json", "*.json.gz")
RANKS = 32  # lines of the table; all are in --json
GZIP = b"\x1f\x8b"


def command(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="files (.json, .json.gz) or directories")],
    top: Annotated[int, option("--top", BEHAVIOUR, "how many kinds of collectives to list (10)", "N")] = 10,
    html: Annotated[Path | None, option("--html", BEHAVIOUR, "write a page with a plot there", "FILE")] = None,
    json_: Annotated[bool, option("--json", BEHAVIOUR, "one JSON document on stdout")] = False,
) -> None:
    """Read torch.profiler's traces: computation, communication, both at once, idle, for each rank and step.

    Example: allranks overlap outputs/rank_*_trace.json.gz --html overlap.html
    """
    read, notes = read_all(files_of(traces))
    found = measure(read)
    answer = document(found, max(1, top), notes)
    if html is not None:
        from allranks.report.overlappage import overlap_page

        try:
            html.write_text(overlap_page(answer), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--html {html}: {error.strerror}") from None
    sys.stdout.write(json.dumps(answer) + "\n" if json_ else text(answer, found))


def files_of(places: list[Path]) -> list[Path]:
    """The files themselves, and the traces in directories, by name."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted({path for pattern in TRACES for path in place.glob(pattern) if path.is_file()})
            if not inside:
                raise UsageError(f"{place}: no trace in it (*.json, *.json.gz)")
            found += inside
        else:
            found.append(place)
    return list(dict.fromkeys(found))


def read_all(files: list[Path]) -> tuple[list[Trace], list[str]]:
    """One after the other; those that can't be read become notes, unless none can."""
    read, notes = [], []
    for file in files:
        try:
            read.append(read_trace(str(file), pieces(file)))
        except (BrokenTrace, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            notes.append(f"{file}: {reason}")
    if not read:
        raise UsageError("; ".join(notes[:5]) or "no traces given")
    return read, notes


def pieces(file: Path) -> Iterator[str]:
    """The text of a file, packed or not; a packed one that is cut off gives what is left of it."""
    with file.open("rb") as raw:
        packed = raw.read(2) == GZIP
    opened: Any = gzip.open if packed else open
    with opened(file, "rt", encoding="utf-8", errors="replace") as stream:
        while True:
            try:
                piece = stream.read(PIECE)
            except (EOFError, zlib.error):
                return
            if not piece:
                return
            yield piece


# -- as text ---------------------------------------------------------------------------------------


def text(answer: dict[str, Any], found: Overlap) -> str:
    """The verdict, a line a rank, the collectives in the open."""
    lines = [answer["verdict"], ""]
    lines += table([HEAD, *[rank_row(r) for r in answer["ranks"][:RANKS]]])
    if len(answer["ranks"]) > RANKS:
        lines.append(f"and {len(answer['ranks']) - RANKS} more (--json has all)")
    lines.append("means of a step; computing and communicating each contain both")
    if answer["collectives"]:
        lines += ["", "collectives, those in the open longest first:"]
        lines += table([COLLECTIVES, *[collective_row(c, found.steps) for c in answer["collectives"]]])
        lines.append("size: what a rank puts in; in the open, waiting: means of a rank's step")
    if answer["collectives_left_out"]:
        lines.append(f"and {answer['collectives_left_out']} more kinds (--top)")
    notes = [f"{rank['name']}: {note}" for rank in answer["ranks"] for note in rank["notes"]]
    return "\n".join([*lines, *(f"note: {note}" for note in [*notes[:RANKS], *answer["notes"]])]) + "\n"


HEAD = ("", "steps", "step", "computing", "communicating", "both", "in the open", "copying", "idle")
COLLECTIVES = ("collective", "size", "times", "median", "longest", "hidden", "in the open", "waiting", "group")


def rank_row(rank: dict[str, Any]) -> tuple[str, ...]:
    """One rank's mean step."""
    mean = rank["mean"]
    names = ("seconds", "computing", "communicating", "both", "exposed", "copying", "idle")
    return (rank["name"][:40], str(len(rank["steps"])), *(say_time(mean[name]) for name in names))


def collective_row(group: dict[str, Any], steps: int) -> tuple[str, ...]:
    """One kind of collective."""
    each = max(1, steps)
    return (
        group["name"], say_bytes(group["size"]), str(group["count"]), say_time(group["median"]),
        say_time(group["longest"]["seconds"]), percent(group["hidden"]), say_time(group["exposed"] / each),
        say_time(group["waiting"] / each), group["group"],
    )  # fmt: skip


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns as wide as they must be: the first to the left, figures to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(w) if at == 0 else cell.rjust(w)
                  for at, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip
