"""Flight recorders that torch has written beside the logs: who the others wait for (../hangs/frontier.py)."""

from __future__ import annotations

from dataclasses import replace

from allranks.findings import Where
from allranks.text import group, join_words, plural

from ..candidate import Candidate
from ..hangs.recorder import RankRecording
from ..logs.sightings import Evidence
from ..words import count_ranks


def recorders(evidence: Evidence) -> list[Candidate]:
    """Give what the dumps of all ranks say; nothing where none has anything unfinished."""
    if not evidence.recordings:
        return []
    from ..hangs.frontier import account, read_account  # late: few logs have dumps beside them, and it takes 5 ms

    recorded = account(evidence.recordings)
    if recorded is None:
        return []
    nodes = {rank: evidence.node_of_rank(rank) or "" for rank in recorded.culprits}
    reading = read_account(recorded, nodes)
    where = Where()
    if len(recorded.culprits) == 1:
        rank = recorded.culprits[0]
        where = Where(rank=rank, node=nodes[rank] or None)
    further_lines = [line for line in recorded.lines if line.partition(": ")[2] not in recorded.message]
    lines = (*_places(evidence.recordings), *further_lines)
    return [replace(reading, where=where, evidence=lines[:3], line=0)]


def _places(recordings: tuple[RankRecording, ...]) -> list[str]:
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
