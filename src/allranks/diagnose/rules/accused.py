"""Ranks accuse another: whoever reports it is a victim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..accusations import accusation
from ..candidate import Candidate
from ..incident import Incident
from ..words import last_lines, name_ranks, summary
from .failures import Failure, FailureRole, telling
from .hung import place_of

LATE = "`allranks logs --rank {rank}` shows what it did instead. Run with --hang-timeout 60 for its stack"
MODELS = "build the same model on every rank: look for a condition on rank, and for code or packages that differ"


def accused(incident: Incident, failed: Sequence[Failure]) -> Candidate | None:
    """Name the rank that others accuse, with its node."""
    accusing = [f for f in failed if f.role is not FailureRole.ENDED]
    read = accusation(((f.rank, _text(f)) for f in accusing), incident.all_ranks)
    if read is None:
        return None
    remedy = MODELS
    if read.cause == "straggler":
        remedy = LATE.format(rank=min(read.culprits))
    # what two ranks write may contradict each other only together
    alone = (f for f in accusing if accusation([(f.rank, _text(f))], incident.all_ranks))
    speaking = next(alone, accusing[0])
    last = "".join(last_lines(speaking.exit.tail, 1))
    if speaking.raised is not None:
        last = telling(speaking.raised)[-1].text
    return replace(
        read,
        message=" ".join(filter(None, (name_ranks(incident, read.culprits), read.message))),
        remedy=remedy,
        evidence=(f"rank {speaking.rank}: {summary(last)}",),
        where=place_of(incident, read.culprits),
        t=speaking.t,
    )


def _text(failure: Failure) -> str:
    if failure.raised is None:
        return failure.exit.tail
    return "\n".join(link.text for link in telling(failure.raised))


RULES = {
    "accused": (
        "torch ProcessGroupGloo.cpp (monitoredBarrier), reducer.cpp and logger.cpp (verify_params_across_processes)",
        accused,
    ),
}
