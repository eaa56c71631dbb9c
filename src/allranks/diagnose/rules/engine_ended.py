"""The engine that gave the nodes took them back: a time limit, a preemption, a cancelled job, a failed node."""

from __future__ import annotations

from ..causes import CAUSES
from ..incident import Incident
from ..slurm import CHECK
from .candidate import Candidate, Strength

ID = "engine-ended"
SOURCE = "Slurm: scontrol show job, slurmstepd's own lines; the finding carries the engine's name as its check"
ENGINES = frozenset({CHECK})


def apply(incident: Incident) -> Candidate | None:
    """It is asked only when an attempt has failed or was stopped, and answers for the job as a whole."""
    found = next((f for f in incident.findings if f.check in ENGINES and f.status == "fail"), None)
    if found is None:
        return None
    node = found.where.node
    ranks = incident.ranks_by_node.get(node, ()) if node is not None else ()
    return Candidate(
        ID, found.id if found.id in CAUSES else "unknown", Strength.ENGINE, found.message, 0.95, None, found.remedy,
        found.where, found.evidence, frozenset(ranks),
    )  # fmt: skip
