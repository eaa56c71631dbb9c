"""allranks overlap: does training hide its communication behind computation? From traces of torch.profiler."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from allranks.errors import UsageError
from allranks.exitcodes import DONE
from allranks.overlap.measure import measure
from allranks.overlap.statement import (
    COLLECTIVE_COLUMNS,
    SPLIT_COLUMNS,
    OverlapDocument,
    collective_cells,
    document,
    split_cells,
)
from allranks.overlap.stream import BrokenTrace
from allranks.overlap.trace import Trace, read_trace
from allranks.protocol.codec import document_line
from allranks.runs.regular import replacing
from allranks.text import align_columns, cut

PIECE = 1 << 20  # characters read at once
TRACES = ("*.json", "*.json.gz")
RANKS = 32  # lines of the table; all are in --json
NAME_LENGTH = 40
GZIP = b"\x1f\x8b"


def command(traces: tuple[str, ...], top: int, html: str | None, json_: bool) -> int:
    """Measure traces."""
    readable, notes = read_traces([Path(trace) for trace in traces])
    answer = document(measure(readable), top, notes)
    if html is not None:
        # Late: Jinja takes 50 ms, and only a page needs it.
        from allranks.report.overlappage import overlap_page  # imported late: allranks.pyz has no Jinja2

        try:
            with replacing(Path(html)) as file:
                file.write(overlap_page(answer).encode())
        except OSError as error:
            raise UsageError(f"--html {html}: {error.strerror}") from None
    sys.stdout.write(document_line(answer) + "\n" if json_ else text(answer))
    return DONE


def read_traces(places: Sequence[Path]) -> tuple[list[Trace], list[str]]:
    """Read files and the traces in directories; what cannot be read becomes a note, unless nothing can."""
    notes: list[str] = []
    files: list[Path] = []
    for place in places:
        inside = [place]
        if place.is_dir():
            inside = sorted({path for pattern in TRACES for path in place.glob(pattern) if path.is_file()})
        if not inside:
            notes.append(f"{place}: no trace in it (*.json, *.json.gz)")
        files += inside
    traces: list[Trace] = []
    for file in dict.fromkeys(files):
        try:
            traces.append(read_trace(str(file), pieces(file)))
        except (BrokenTrace, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            notes.append(f"{file}: {reason}")
    if not traces:
        raise UsageError("; ".join(notes[:5]) or "no traces given")
    return traces, notes


def pieces(file: Path) -> Iterator[str]:
    """Yield the text of a file, packed or not; a packed one that is cut off gives what is left of it."""
    with file.open("rb") as raw:
        packed = raw.peek(2).startswith(GZIP)
        with io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if packed else raw, "utf-8", "replace") as stream:
            try:
                while piece := stream.read(PIECE):
                    yield piece
            except (EOFError, zlib.error):
                return


# -- as text ---------------------------------------------------------------------------------------


def text(answer: OverlapDocument) -> str:
    """Write the verdict, a line a rank, and the exposed collectives."""
    ranks = answer.ranks
    rows = [[cut(rank.name, NAME_LENGTH), str(len(rank.steps)), *split_cells(rank.mean)] for rank in ranks[:RANKS]]
    lines = [answer.verdict, "", *align_columns([["", "steps", *SPLIT_COLUMNS], *rows], left=[0])]
    if len(ranks) > RANKS:
        lines.append(f"and {len(ranks) - RANKS} more (--json has all)")
    lines.append("means of a step. Computing and communicating each contain both")
    if answer.collectives:
        collectives = [collective_cells(summary, answer.steps) for summary in answer.collectives]
        lines += [
            "",
            "collectives, those exposed longest first:",
            *align_columns([COLLECTIVE_COLUMNS, *collectives], left=[0]),
        ]
        lines.append("size: what a rank puts in. Exposed, waiting: means of a rank's step")
    if answer.collectives_left_out:
        lines.append(f"and {answer.collectives_left_out} more kinds (--top)")
    notes = [f"{rank.name}: {note}" for rank in ranks for note in rank.notes]
    lines += [f"note: {note}" for note in [*notes[:RANKS], *answer.notes]]
    return "\n".join(lines) + "\n"
