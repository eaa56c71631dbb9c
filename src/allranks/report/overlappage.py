"""The page of `allranks overlap`: one file, nothing fetched from elsewhere, everything escaped (reads its template)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from allranks.overlap.measure import RankOverlap, TimeSplit
from allranks.overlap.statement import COLLECTIVE_COLUMNS, SPLIT_COLUMNS, OverlapDocument, collective_cells, split_cells
from allranks.text import count_of, cut, format_percent, format_time

from .drawing import GridLine, PlotFrame
from .page import render

BARS = 64  # ranks in the plot
STEPS = 500  # rows of the table
NOTES = 100
NAME_LENGTH = 200  # characters of a rank's name in the table
LEFT = 190.0
TOP = 8.0
WIDTH = 640.0  # of the longest step in the plot
ROW = 24.0  # height of a rank's
TICKS = 5


class StepPart(NamedTuple):
    """A part of a step, in the order of a bar."""

    key: str
    colour: str  # Okabe and Ito's: what is good is blue and green, what costs is orange, the rest is grey
    text: str


class BarPiece(NamedTuple):
    """A part of one rank's bar."""

    part: StepPart
    left: float
    width: float
    text: str


class RankBar(NamedTuple):
    """The mean step of one rank."""

    name: str
    pieces: list[BarPiece]
    width: float
    time: str


PARTS = (
    StepPart("computed", "#0072b2", "computation alone"),
    StepPart("both", "#009e73", "computation and communication at once"),
    StepPart("exposed", "#d55e00", "exposed communication"),
    StepPart("copying", "#8a7000", "copies alone"),
    StepPart("idle", "#9aa3b0", "idle"),
)


def overlap_page(document: OverlapDocument) -> str:
    """Write the document that `--json` prints as HTML."""
    ranks = document.ranks
    rows = [
        (cut(rank.name, NAME_LENGTH), "all" if step.step is None else str(step.step), *split_cells(step))
        for rank in ranks
        for step in rank.steps
    ]
    notes = [f"{rank.name}: {note}" for rank in ranks for note in rank.notes]
    traced = [rank for rank in ranks if rank.mean.seconds > 0]
    longest = max((rank.mean.seconds for rank in traced), default=0.0)
    return render(
        "overlap.html",
        document=document,
        summary=_summary(document),
        parts=PARTS,
        bars=[_bar(rank, longest) for rank in traced[:BARS]],
        bars_left_out=max(0, len(traced) - BARS),
        frame=PlotFrame(LEFT, TOP, WIDTH, ROW * min(BARS, len(traced))),
        row=ROW,
        ticks=[GridLine(LEFT + WIDTH * tick / TICKS, format_time(longest * tick / TICKS)) for tick in range(TICKS + 1)],
        collective_columns=COLLECTIVE_COLUMNS,
        collectives=[collective_cells(summary, document.steps) for summary in document.collectives],
        step_columns=("rank", "step", "length", *SPLIT_COLUMNS[1:]),
        steps=rows[:STEPS],
        steps_left_out=max(0, len(rows) - STEPS),
        notes=[*notes, *document.notes][:NOTES],
    )


def _summary(document: OverlapDocument) -> str:
    devices = " and ".join(sorted({rank.device.upper() for rank in document.ranks}))
    traces = count_of(len(document.ranks), "trace")
    return f"{traces}, {count_of(document.steps, 'step')} of ranks, on {devices}, times are means of a rank's step"


def _bar(rank: RankOverlap, longest: float) -> RankBar:
    pieces = list(_pieces(rank.name, rank.mean, WIDTH / longest))
    return RankBar(rank.name, pieces, sum(piece.width for piece in pieces), format_time(rank.mean.seconds))


def _pieces(name: str, mean: TimeSplit, scale: float) -> Iterator[BarPiece]:
    """Yield the parts that are not empty; together they are the step."""
    left = LEFT
    seconds: Sequence[float] = (mean.computing - mean.both, mean.both, mean.exposed, mean.copying, mean.idle)
    for part, length in zip(PARTS, seconds, strict=True):
        if length > 0:
            share = format_percent(length / mean.seconds)
            yield BarPiece(part, left, scale * length, f"{name}, {part.text}: {format_time(length)} ({share})")
            left += scale * length
