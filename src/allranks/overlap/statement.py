"""What `allranks overlap` says: one sentence, and one JSON document (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from allranks.text import format_percent, format_size, format_time

from .measure import CollectiveSummary, Overlap, TimeSplit

LITTLE = 0.05  # of a step: exposed communication that isn't worth work
MOSTLY = 0.5  # of communication, hidden
HARDLY = 0.2
MUCH_IDLE = 0.25  # of a step
WAITING = 0.5  # of what is exposed: the ranks differ more than the network costs
CHIEFLY = 0.6  # of all that was waited for, because of one rank
NOTHING_TRACED = "Nothing was traced in any step: neither computation nor communication."
NO_COMMUNICATION = "No communication was traced: there is one rank, or the profiler ran while none took place"


@dataclass(frozen=True)
class OverlapDocument(Overlap):
    """What `--json` prints. Seconds throughout; `collectives` holds those that are exposed longest."""

    verdict: str
    collectives_left_out: int
    notes: list[str]
    exit: int = 0


def document(overlap: Overlap, top: int, notes: Sequence[str] = ()) -> OverlapDocument:
    """Make the document, with the `top` kinds of collectives."""
    shown = replace(overlap, collectives=overlap.collectives[:top])
    left_out = len(overlap.collectives) - len(shown.collectives)
    return OverlapDocument(**vars(shown), verdict=verdict(overlap), collectives_left_out=left_out, notes=list(notes))


def verdict(overlap: Overlap) -> str:
    """Say whether communication is hidden, what is exposed, and why, where that can be seen."""
    mean = overlap.mean
    if not overlap.steps:
        return NOTHING_TRACED
    if mean.hidden is None:
        return f"{NO_COMMUNICATION}{_idle(overlap)}."
    share = mean.exposed / mean.seconds if mean.seconds else 0.0
    has_steps = any(step.step is not None for rank in overlap.ranks for step in rank.steps)
    text = (
        f"{_judgement(mean.hidden, share)}: of {format_time(mean.communicating)} in a "
        f"{'step' if has_steps else 'trace'} of {format_time(mean.seconds)}, computation covers "
        f"{format_percent(mean.hidden)}, and {format_time(mean.exposed)} ({format_percent(share)} of the time) is "
        "exposed"
    )
    if share >= LITTLE:
        text += _costliest(overlap.collectives) + _waiting(overlap)
    return f"{text}{_idle(overlap)}."


def _judgement(hidden: float, exposed: float) -> str:
    """Judge by the hidden share of communication and the share of time in which it is exposed."""
    if exposed < LITTLE:
        return "Communication is hidden" if hidden >= MOSTLY else "Communication costs little"
    if hidden >= MOSTLY:
        return "Communication is mostly hidden"
    return "Communication is partly hidden" if hidden >= HARDLY else "Communication is hardly hidden"


def _costliest(collectives: Sequence[CollectiveSummary]) -> str:
    """Name the kind that costs most: `, 84 % of it all_gather of 401 KB in mesh_shard`."""
    exposed = sum(summary.exposed for summary in collectives)
    if exposed <= 0:
        return ""
    first = collectives[0]
    text = f", {format_percent(first.exposed / exposed)} of it {first.kind.name}"
    if first.kind.size is not None:
        text += f" of {format_size(first.kind.size)}"
    if first.kind.group:
        text += f" in {first.kind.group}"
    return text


def _waiting(overlap: Overlap) -> str:
    """Say where the network is not what takes the time."""
    exposed = sum(summary.exposed for summary in overlap.collectives)
    waiting = sum(summary.waiting for summary in overlap.collectives)
    if not exposed or waiting < WAITING * exposed:
        return ""
    last, seconds = max(overlap.waited_for.items(), key=lambda rank: rank[1])
    if seconds < CHIEFLY * waiting:
        last = "whichever rank is last"
    return f", and {format_percent(waiting / exposed)} of it is waiting for {last}, not transfer"


def _idle(overlap: Overlap) -> str:
    mean = overlap.mean
    if not mean.seconds or mean.idle < MUCH_IDLE * mean.seconds:
        return ""
    share = format_percent(mean.idle / mean.seconds)
    if any(rank.device == "gpu" for rank in overlap.ranks):
        return f". For {share} of the time the GPU is idle: look first at the input, and at what the CPU does"
    return f". For {share} of the time no operator runs: Python itself, or a wait for input"


# -- cells of tables ---------------------------------------------------------------------------------

SPLIT_COLUMNS = ("step", "computing", "communicating", "both", "exposed", "copying", "idle")
COLLECTIVE_COLUMNS = (
    *("collective", "size", "times", "median", "longest", "on"),
    *("hidden", "exposed", "waiting", "group"),
)


def split_cells(split: TimeSplit) -> list[str]:
    """Write the cells under SPLIT_COLUMNS."""
    parts = (split.seconds, split.computing, split.communicating, split.both, split.exposed, split.copying, split.idle)
    return [format_time(part) for part in parts]


def collective_cells(summary: CollectiveSummary, steps: int) -> list[str]:
    """Write the cells under COLLECTIVE_COLUMNS; what is exposed is the mean of a rank's step."""
    longest = summary.longest
    return [
        summary.kind.name,
        "size unknown" if summary.kind.size is None else format_size(summary.kind.size),
        str(summary.count),
        format_time(summary.median),
        format_time(longest.seconds),
        longest.rank if longest.step is None else f"{longest.rank}, step {longest.step}",
        format_percent(summary.hidden),
        format_time(summary.exposed / max(1, steps)),
        format_time(summary.waiting / max(1, steps)),
        summary.kind.group,
    ]
