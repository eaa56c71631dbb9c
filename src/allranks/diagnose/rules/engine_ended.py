"""The engine that gave the nodes took them back: a time limit, a preemption, a cancelled job, a failed node."""

from __future__ import annotations

from ..candidate import Candidate, Strength
from ..causes import cause_or_unknown
from ..incident import Incident
from ..slurm import CHECK

ID = "engine-ended"
SOURCE = "Slurm: scontrol show job, slurmstepd's own lines; the finding carries the engine's name as its check"
ENGINES = frozenset({CHECK})
KNOWN = 0.95
NOT_KNOWN = 0.7  # confidence: whether the engine said why


def apply(incident: Incident) -> Candidate | None:
    """It is asked only when an attempt has failed or was stopped, and answers for the job as a whole."""
    finding = next((f for f in incident.findings if f.check in ENGINES and f.status == "fail"), None)
    if finding is None:
        return None
    node = finding.where.node
    ranks = incident.ranks_by_node.get(node, ()) if node is not None else ()
    cause = cause_or_unknown(finding.id)
    confidence = KNOWN if cause != "unknown" else NOT_KNOWN
    return Candidate(
        ID,
        cause,
        Strength.ENGINE,
        finding.message,
        confidence,
        None,
        finding.remedy,
        finding.where,
        finding.evidence,
        frozenset(ranks),
    )
