"""N of M ranks came to the store: who is absent, nothing here says why."""

from __future__ import annotations

from dataclasses import replace

from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence
from .table import candidate

ID = "clients-joined"
SOURCE = "torch: TCPStore.cpp waitForWorkers; distributed_c10d.py _store_based_barrier"


def apply(evidence: Evidence) -> list[Candidate]:
    """Too few: they never came. Too many: another run, or another count, uses the same store."""
    seen = evidence.weighed_by(ID)
    if not seen:
        return []
    last = seen[-1]
    joined, world = int(last.groups["joined"]), int(last.groups["world"])
    made = replace(candidate(evidence, [last]), rule=ID)
    if joined > world:
        words = f"{joined} ranks came to a store of {world}: two runs use it, or nodes count differently"
        return [replace(made, cause="world-size-mismatch", confidence=0.7, message=words)]
    absent = world - joined
    words = f"{absent} of {world} ranks never came to the rendezvous, and nothing here says why"
    found = [replace(made, cause="rendezvous-timeout", confidence=0.63, message=words)]
    if joined <= 1:
        second = "only one of the announced ranks was started, or no other reaches the master"
        found.append(
            replace(
                made,
                cause="world-size-mismatch",
                strength=Strength.SYMPTOM,
                confidence=0.4,
                message=second,
            )
        )
    return found
