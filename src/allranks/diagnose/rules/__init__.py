"""The rules, and which of them wins (pure).

One rule a file: `ID`, `SOURCE` (where its facts come from) and `apply(incident) -> Candidate | None`. A new
rule is a file, a line in `RULES` and a fixture in tests/rules/<rule>/.

Supersession, in this order:
 1. Strength (candidate.py): what explains itself beats a finding of a check, that beats what is unexplained, that
    beats a complaint about a peer. So a peer's out-of-memory explains a reset connection whatever the clocks say.
 2. But an unexplained end that came clearly (`verdict.CLEARLY`) before a root is not its consequence: it wins.
 3. Among equals the earliest wins; within the clocks' error the surer one.
Inside the rank rules failures.py has already set aside what is a consequence, and joined ranks that failed alike:
what every rank raised blames none.
"""

from __future__ import annotations

from collections.abc import Callable

from ..incident import Incident
from . import (
    check_finding,
    engine_ended,
    guard_fault,
    hung,
    init_timeout,
    launcher_paused,
    node_lost,
    peer_lost,
    rank_crashed,
    rank_exited,
    rank_killed,
    rank_raised,
    start_failed,
)
from .candidate import Candidate, Strength

__all__ = ["RULES", "SOURCES", "Candidate", "Strength"]

_MODULES = (
    check_finding,
    engine_ended,
    start_failed,
    launcher_paused,
    node_lost,
    guard_fault,
    rank_raised,
    rank_crashed,
    rank_killed,
    rank_exited,
    hung,
    init_timeout,
    peer_lost,
)
RULES: dict[str, Callable[[Incident], Candidate | None]] = {m.ID: m.apply for m in _MODULES}
SOURCES: dict[str, str] = {m.ID: m.SOURCE for m in _MODULES}
