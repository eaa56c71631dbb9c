"""DDP's check that all ranks have one model: a real difference, or zeros that a failed collective left behind."""

from __future__ import annotations

from dataclasses import replace

from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence
from .table import candidate

ID = "ddp-model"
SOURCE = "torch: reducer.cpp verify_params_across_processes: it gathers counts by a collective"


def apply(evidence: Evidence) -> list[Candidate]:
    """Nothing where the others' count is 0: no model has no parameters, the gathering had failed."""
    seen = [s for s in evidence.weighed_by(ID) if s.groups.get("sizes") or s.groups.get("other", "0") != "0"]
    if not seen:
        return []
    return [replace(candidate(evidence, seen), strength=Strength.WEAK, confidence=0.72)]
