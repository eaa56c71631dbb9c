"""Nothing moved for the time limit: two looks at every rank say who kept the others waiting."""

from __future__ import annotations

from ..candidate import Candidate, Strength
from ..incident import Incident
from ..words import thread_words
from .init_timeout import place_of

ID = "hung"
SOURCE = "stacks of all ranks (the runner's dump signal, py-spy) and /proc, twice; see `allranks.diagnose.hangs`"


def apply(incident: Incident) -> Candidate | None:
    """What the looks said; a rank that ended with 0 is a culprit too."""
    hang = incident.hang
    if hang is None:
        return None
    culprits = frozenset(hang.culprits)
    raised = next((words for e in incident.exits if e.rank in culprits if (words := thread_words(e.tail))), "")
    return Candidate(
        ID,
        hang.cause,
        Strength.ROOT,
        hang.message + raised,
        hang.confidence,
        incident.detected_t,
        hang.remedy,
        place_of(incident, culprits),
        hang.evidence,
        culprits,
    )
