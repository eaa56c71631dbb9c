"""The rules: each answers with what it makes of the observations; `verdict.py` chooses (pure).

A rule on a run is a file: `ID`, `SOURCE` (where its facts come from) and `apply(incident) -> Candidate | None`. A new
one is a file, a line in `RULES` and a fixture in tests/rules/<rule>/. A rule on logs is a function
`(evidence) -> list[Candidate]` in a file `log_….py`, with a line in its `RULES` and a case in tests/diagnose/cases.
Inside the rank rules failures.py has already set aside what is a consequence, and joined ranks that failed alike:
what every rank raised blames none.
"""

from __future__ import annotations

from collections.abc import Callable

from ..candidate import Candidate
from ..incident import Incident
from ..logs.evidence import Evidence
from . import (
    agent_fault,
    check_finding,
    engine_ended,
    hung,
    init_timeout,
    launcher_paused,
    log_collectives,
    log_connections,
    log_ends,
    log_lines,
    log_xids,
    node_lost,
    peer_lost,
    rank_crashed,
    rank_exited,
    rank_killed,
    rank_raised,
    start_failed,
)

_ON_RUNS = (
    check_finding,
    engine_ended,
    start_failed,
    launcher_paused,
    node_lost,
    agent_fault,
    rank_raised,
    rank_crashed,
    rank_killed,
    rank_exited,
    hung,
    init_timeout,
    peer_lost,
)
_ON_LOGS = {
    **log_lines.RULES,
    **log_xids.RULES,
    **log_collectives.RULES,
    **log_connections.RULES,
    **log_ends.RULES,
}
RULES: dict[str, Callable[[Incident], Candidate | None]] = {m.ID: m.apply for m in _ON_RUNS}
LOG_RULES: dict[str, Callable[[Evidence], list[Candidate]]] = {name: apply for name, (_, apply) in _ON_LOGS.items()}
SOURCES: dict[str, str] = {
    **{m.ID: m.SOURCE for m in _ON_RUNS},
    **{name: source for name, (source, _) in _ON_LOGS.items()},
}
