"""A collective timed out, and the launcher had nobody left to end: the others had already finished.

torchrun signals every worker that is still alive when one fails ("Sending process … closing signal"). If only one
failed, no other was signalled and none failed, the others had ended by themselves, with success: they had fewer
steps to do than the rank that waits for them.
"""

from __future__ import annotations

from dataclasses import replace

from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence, shown
from .collective_timeout import waits
from .exit_code import ends
from .table import candidate

ID = "uneven-end"
SOURCE = "torch: elastic/multiprocessing/api.py (PContext.close), errors/__init__.py (<NO_OTHER_FAILURES>)"


def apply(evidence: Evidence) -> list[Candidate]:
    """The ranks that wait had more to do."""
    waiting = waits(evidence)
    alone = any("NO_OTHER_FAILURES" in s.line.text for s in evidence.seen("agent-block"))
    signalled = any("closing signal" in line.text for line in evidence.lines)
    failed = {e.rank for e in ends(evidence) if e.rank is not None}
    if len(waiting) != 1 or not alone or signalled or failed - set(waiting) or evidence.ranks - set(waiting):
        return []
    wait = next(iter(waiting.values()))
    if not _had_worked(evidence):
        return []
    made = candidate(evidence, [wait.sighting])
    what = f"rank {wait.rank} waited in {wait.op} number {wait.seq}"
    message = f"{what} for ranks that had already ended without failure: it had more batches"
    return [
        replace(
            made,
            rule=ID,
            cause="uneven-data",
            strength=Strength.SYMPTOM,
            confidence=0.66,
            message=message,
            where=replace(made.where, rank=wait.rank),
            evidence=(shown(wait.sighting.line), *(shown(s.line) for s in evidence.seen("agent-block")[:1])),
        )
    ]


def _had_worked(evidence: Evidence) -> bool:
    """Collectives had completed before: it is no failure of the start."""
    return any(int(s.groups["completed"]) > 1 for s in evidence.seen("work-counts"))
