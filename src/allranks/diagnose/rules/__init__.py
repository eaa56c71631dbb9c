"""The rules: each answers with what it makes of the observations; `verdict.py` chooses (pure).

Each module has `RULES`: name → where its facts come from, and the rule. A rule on a run is a function
`(incident) -> Candidate | None` with fixtures in tests/diagnose/rules/<rule>/; a rule on logs is a function
`(evidence) -> list[Candidate]` in a file `log_….py`, with a case in tests/diagnose/cases.
A rule on failed ranks is a function `(incident, failed) -> Candidate | None`: failures.py has read the end of each rank
once, and has set aside what is a consequence. What every rank raised blames none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..candidate import Candidate
from ..incident import Incident
from ..logs.sightings import Evidence
from . import (
    accused,
    hung,
    log_collectives,
    log_connections,
    log_ends,
    log_lines,
    log_recorders,
    log_xids,
    peer_lost,
    rank_ended,
)
from . import named_faults as findings
from . import node_failures as nodes
from .failures import Failure

RULES: dict[str, tuple[str, Callable[[Incident], Candidate | None]]] = {
    **findings.RULES,
    **nodes.RULES,
    **hung.RULES,
}
FAILURE_RULES: dict[str, tuple[str, Callable[[Incident, Sequence[Failure]], Candidate | None]]] = {
    **rank_ended.RULES,
    **accused.RULES,
    **peer_lost.RULES,
}
LOG_RULES: dict[str, tuple[str, Callable[[Evidence], list[Candidate]]]] = {
    **log_lines.RULES,
    **log_xids.RULES,
    **log_collectives.RULES,
    **log_recorders.RULES,
    **log_connections.RULES,
    **log_ends.RULES,
}
