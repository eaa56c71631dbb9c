"""Slurm's CANCELLED without a reason: scancel, or the end of a step in which a task had failed before."""

from __future__ import annotations

from dataclasses import replace

from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence
from .table import candidate

ID = "slurm-end"
SOURCE = "Slurm: slurmstepd/req.c (job and step cancellation), srun --kill-on-bad-exit"


def apply(evidence: Evidence) -> list[Candidate]:
    """Sure where the whole job was cancelled, and nothing had failed or hung before."""
    seen = evidence.weighed_by(ID)
    if not seen:
        return []
    whole_job = [s for s in seen if s.groups.get("what") == "JOB" or "state" in s.groups or "by" in s.groups]
    failed = [s for s in evidence.seen("srun-task", "watchdog", "agent-exit") if s.order < seen[0].order]
    confidence = 0.35 if failed else 0.8 if whole_job else 0.6
    made = candidate(evidence, whole_job or seen)
    return [replace(made, strength=Strength.SYMPTOM, confidence=confidence)]
