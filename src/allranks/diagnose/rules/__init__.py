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

_ON_RUNS = (findings, nodes, hung)
_ON_FAILURES = (rank_ended, accused, peer_lost)
_ON_LOGS = (log_lines, log_xids, log_collectives, log_recorders, log_connections, log_ends)
_RUN_ROWS = {name: row for module in _ON_RUNS for name, row in module.RULES.items()}
_FAILURE_ROWS = {name: row for module in _ON_FAILURES for name, row in module.RULES.items()}
_LOG_ROWS = {name: row for module in _ON_LOGS for name, row in module.RULES.items()}
RULES: dict[str, Callable[[Incident], Candidate | None]] = {name: apply for name, (_, apply) in _RUN_ROWS.items()}
FAILURE_RULES: dict[str, Callable[[Incident, Sequence[Failure]], Candidate | None]] = {
    name: apply for name, (_, apply) in _FAILURE_ROWS.items()
}
LOG_RULES: dict[str, Callable[[Evidence], list[Candidate]]] = {name: apply for name, (_, apply) in _LOG_ROWS.items()}
SOURCES: dict[str, str] = {name: source for name, (source, _) in {**_RUN_ROWS, **_FAILURE_ROWS, **_LOG_ROWS}.items()}
