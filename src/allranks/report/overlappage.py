"""The page of `allranks overlap`: one file, nothing fetched from elsewhere, everything escaped (reads its template)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from allranks.overlap.measure import TimeSplit
from allranks.overlap.statement import COLLECTIVE_COLUMNS, SPLIT_COLUMNS, OverlapDocument, collective_cells, split_cells
from allranks.text import count_of, cut

from .page import render

BARS = 64  # ranks in the plot
STEPS = 500  # rows of the table
NOTES = 100
NAME_LENGTH = 200  # characters of a rank's name in the table


# Parts of a step in the order of a bar: the class of its shape, its seconds, its colour and its words. Colours are
# Okabe and Ito's: what is good is blue and green, what costs is orange, the rest is grey.
PARTS: Sequence[tuple[str, Callable[[TimeSplit], float], str, str]] = (
    ("computed", lambda split: split.computing - split.both, "#0072b2", "computation alone"),
    ("both", lambda split: split.both, "#009e73", "computation and communication at once"),
    ("exposed", lambda split: split.exposed, "#d55e00", "exposed communication"),
    ("copying", lambda split: split.copying, "#8a7000", "copies alone"),
    ("idle", lambda split: split.idle, "#9aa3b0", "idle"),
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
        parts_in_words=", ".join(text for *_, text in PARTS),
        traced=traced[:BARS],
        traced_left_out=max(0, len(traced) - BARS),
        longest=longest,
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
