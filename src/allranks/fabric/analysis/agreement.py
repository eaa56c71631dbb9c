"""What all ranks' verdicts on a test come to, and who is missing where a test does not end (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from allranks.text import format_ranks, group

from ..metric_rows import CollectiveRow, LateRank, RankError, SuitePlace, WrongElement

LATE = 1.0  # seconds after the median rank
FAILURES_KEPT = 16  # ranks
ERRORS_SHOWN = 3  # different ones on a line
BEFORE = -1  # in the test, but not yet at its first collective
END = 1 << 30  # all collectives of the test are behind it
NOWHERE = SuitePlace(-1, BEFORE, 0)  # of a rank that has not come at all


@dataclass(frozen=True)
class RankVerdict:
    """One rank's word on a test: pass, fail, skip or error. `arrived`: seconds until its first collective."""

    status: str
    detail: str = ""
    reason: str = ""
    difference: Optional[WrongElement] = None
    seconds: float = 0.0
    arrived: float = 0.0


def agree(test: str, verdicts: Sequence[RankVerdict]) -> CollectiveRow:
    """Make one row of all ranks' verdicts: an error outweighs wrong data, wrong data a skip."""
    row = CollectiveRow(
        test,
        "pass",
        verdicts[0].detail,
        seconds=round(max(verdict.seconds for verdict in verdicts), 4),
        late=late_rank([verdict.arrived for verdict in verdicts]),
        ranks=len(verdicts),
    )
    errors = _reasons(verdicts, "error")
    differences = [verdict.difference for verdict in verdicts if verdict.difference and verdict.status == "fail"]
    skips = _reasons(verdicts, "skip")
    if errors:
        failures = tuple(RankError(rank, reason) for rank, reason in errors.items())
        return replace(row, status="fail", reason=_describe_errors(errors), failures=failures[:FAILURES_KEPT])
    if differences:
        telling = next((item for item in differences if item.source is not None), differences[0])
        reason = f"on {format_ranks([item.rank for item in differences])}: {describe_difference(telling)}"
        return replace(row, status="fail", reason=reason, failures=tuple(differences[:FAILURES_KEPT]))
    if len(skips) == len(verdicts):
        return replace(row, status="skip", detail="", reason=skips[0])
    if skips:
        reason = f"on {format_ranks(skips)}: {next(iter(skips.values()))}, unlike on the others"
        return replace(row, status="fail", reason=reason)
    return row


def _reasons(verdicts: Sequence[RankVerdict], status: str) -> dict[int, str]:
    return {rank: verdict.reason for rank, verdict in enumerate(verdicts) if verdict.status == status}


def _describe_errors(errors: Mapping[int, str]) -> str:
    """Write each different error with the ranks that had it: `on rank 1: …; on ranks 0,3: …`."""
    ranks_by_reason = group(errors, errors.__getitem__)
    parts = [f"on {format_ranks(ranks)}: {reason}" for reason, ranks in ranks_by_reason.items()]
    if len(parts) > ERRORS_SHOWN:
        parts[ERRORS_SHOWN:] = [f"{len(parts) - ERRORS_SHOWN} more errors"]
    return "; ".join(parts)


def describe_difference(difference: WrongElement) -> str:
    """Write `round 1 float32 element 0 of rank 2's block: expected 5, found 0`."""
    source = ""
    if difference.note:
        source = f", {difference.note}"
    elif difference.source is not None:
        source = f" of rank {difference.source}'s block"
    place = f"round {difference.round} {difference.kind} element {difference.index}{source}"
    return f"{place}: expected {difference.expected}, found {difference.found}"


def late_rank(arrived: Sequence[float]) -> LateRank | None:
    """Find the rank that came to the first collective long after the median rank."""
    ordered = sorted(arrived)
    behind = ordered[-1] - ordered[(len(ordered) - 1) // 2]
    if behind <= LATE:
        return None
    return LateRank(list(arrived).index(ordered[-1]), round(behind, 3))


# -- a test that does not end --------------------------------------------------------------------------


def progress(place: SuitePlace, test: int) -> int:
    """Tell how far a rank has come in a test: a round, BEFORE or END."""
    if place.test < test:
        return BEFORE
    if place.test > test:
        return END
    return place.turn


def split_arrived(places: Mapping[int, SuitePlace], test: int) -> tuple[list[int], list[int]]:
    """Split ranks into those that had arrived and those least far; none is missing where all are equally far."""
    progress_of = {rank: progress(place, test) for rank, place in sorted(places.items())}
    least = min(progress_of.values())
    if least == max(progress_of.values()) and least != BEFORE:
        return list(progress_of), []
    arrived = [rank for rank, turn in progress_of.items() if turn > least]
    return arrived, [rank for rank, turn in progress_of.items() if turn == least]


def silent_ranks(before: Mapping[int, SuitePlace], after: Mapping[int, SuitePlace]) -> list[int]:
    """Find the ranks whose watchdog gave no life sign between two samples."""
    return sorted(rank for rank, place in after.items() if place.beat == before[rank].beat)


def describe_hang(reason: str, places: Mapping[int, SuitePlace], test: int, silent: Sequence[int]) -> str:
    """Write the sentence: who was missing, where the others were, who gives no life sign."""
    ordered = sorted(places, key=lambda rank: (progress(places[rank], test), rank))
    ranks_by_place = group(ordered, lambda rank: _describe_place(places[rank], test))
    text = f"{reason}: " + "; ".join(f"{format_ranks(ranks)} {where}" for where, ranks in ranks_by_place.items())
    if silent:
        text += f", no sign of life from {format_ranks(silent)} (ended or stopped)"
    return text


def _describe_place(place: SuitePlace, test: int) -> str:
    turn = progress(place, test)
    if place.error and place.test == test:
        return f"gave up: {place.error}"
    if turn == BEFORE:
        return "had not arrived"
    if turn == END:
        return "had finished"
    return f"in round {turn}"
