"""Why a run failed: Incident (all evidence) → rules → Verdict (pure)."""

from __future__ import annotations

from .incident import ExitRecord, Fault, Incident, LostNode, Raised
from .verdict import judge

__all__ = ["ExitRecord", "Fault", "Incident", "LostNode", "Raised", "judge"]
