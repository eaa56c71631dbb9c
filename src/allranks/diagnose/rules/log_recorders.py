"""Flight recorders that torch has written beside the logs: who the others wait for (../hangs/frontier.py)."""

from __future__ import annotations

from allranks.findings import Where
from allranks.text import group, join_words, plural

from ..candidate import Candidate, Reading, Strength
from ..hangs.attribute import CONDITION, STUCK
from ..hangs.frontier import Account, CollectiveFault, account
from ..hangs.recorder import Recording
from ..logs.sightings import Evidence
from ..words import count_ranks

BEHIND = "find out what was done there instead: read the log, `dmesg -T` on the node, and while it stands `py-spy dump`"
SAME = f"all ranks of a group must call the same collectives with the same shapes in the same order. {CONDITION}"
LINK = "all ranks have called it, so the network between them is suspect: `allranks test --suite pairs` measures it"


def recorders(evidence: Evidence) -> list[Candidate]:
    """Give what the dumps of all ranks say; nothing where none has anything unfinished."""
    recorded = account(evidence.recordings)
    if recorded is None:
        return []
    reading = _read(recorded)
    where = Where()
    if len(recorded.culprits) == 1:
        where = Where(rank=recorded.culprits[0])
    further_lines = [line for line in recorded.lines if line.partition(": ")[2] not in recorded.message]
    lines = (*_places(evidence.recordings), *further_lines)
    return [
        Candidate(
            "flight-recorders",
            reading.cause,
            reading.strength,
            reading.words,
            reading.confidence,
            remedy=reading.remedy,
            where=where,
            evidence=lines[:3],
            culprits=reading.late,
            line=0,
        )
    ]


def _read(recorded: Account) -> Reading:
    late = frozenset(recorded.culprits)
    message = recorded.message
    weak = Strength.SYMPTOM  # what made a rank late stands in its log, if anywhere
    if recorded.case is CollectiveFault.DIFFERENT:
        is_shape = len(recorded.operations) == 1
        cause = "collective-shape-mismatch" if is_shape else "collective-mismatch"
        what = "with different shapes or types" if is_shape else "that differ"
        return Reading(cause, 0.9, f"ranks have called collectives {what}: {message}", SAME, late=late)
    if recorded.case is CollectiveFault.MISSING:
        return Reading("straggler", 0.75, f"the others wait for {_named(recorded)}: {message}", BEHIND, weak, late=late)
    if recorded.case is CollectiveFault.STUCK:
        return Reading("straggler", 0.75, f"the others wait for {_named(recorded)}: {message}", STUCK, weak, late=late)
    if recorded.case is CollectiveFault.ORDER:
        words = f"ranks wait for each other in different groups: {message}"
        return Reading("collective-mismatch", 0.7, words, SAME, weak, late=late)
    return Reading("unknown", 0.45, f"{message}, and none is behind", LINK, weak)


def _named(recorded: Account) -> str:
    return count_ranks(recorded.culprits)


def _places(recordings: tuple[Recording, ...]) -> list[str]:
    """Say where the ranks stand in the program, as far as the dumps have stacks."""
    places = {r.rank: str(call.at) for r in recordings if (call := r.stands_at) is not None and call.at is not None}
    parts = [
        f"{count_ranks(ranks)} {plural(len(ranks), 'stands', 'stand')} at {place}"
        for place, ranks in group(sorted(places), lambda rank: places[rank]).items()
    ]
    if parts:
        return [join_words(parts)]
    return []


RULES = {
    "flight-recorders": ("torch FlightRecorder.hpp and DebugInfoWriter, torch/distributed/flight_recorder", recorders),
}
