"""What a run left, read and bounded, as a page or a bundle takes it (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.findings import Verdict
from allranks.protocol.jsontext import Json
from allranks.protocol.run_facts import Fact, Stamped
from allranks.runs.documents import PreflightDocument, ResultDocument, RunDocument, StatusDocument, SuiteResult


class LogName(NamedTuple):
    """A log of an attempt: its path in the run directory, and whose it is. Without a rank it is of its node.

    `role`: the part of the run whose node it is."""

    file: str
    node: str
    rank: int | None
    attempt: int
    role: str = ""


class Excerpt(NamedTuple):
    """Beginning and end of one log, which has `size` bytes and `total` lines; of a small one `head` is all of it.

    The first `context` lines of `tail` are not shown: they tell a redactor what goes on where it begins.
    """

    log: LogName
    size: int
    total: int
    head: Sequence[str]
    tail: Sequence[str] = ()
    context: int = 0


@dataclass(frozen=True)
class Record:
    """A run. `result` is None of one that is not over, `run` where logs alone are shown.

    `texts` are stacks, flight-recorder dumps, kernel logs and the like by their file. `checks` is {check: {node:
    status}}, `tests` are results beside the run, `links` rows of its own tests. `logs_left_out` counts logs without an
    excerpt.
    """

    name: str
    directory: str
    state: str
    verdict: Verdict
    run: RunDocument | None = None
    result: ResultDocument | None = None
    status: StatusDocument = field(default_factory=StatusDocument)
    facts: tuple[Stamped[Fact], ...] = ()
    preflight: PreflightDocument = field(default_factory=PreflightDocument)
    tests: tuple[SuiteResult, ...] = ()
    links: tuple[Mapping[str, Json], ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    excerpts: tuple[Excerpt, ...] = ()
    logs_left_out: int = 0
