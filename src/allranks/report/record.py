"""What a run left, read and bounded, as a page or a bundle takes it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.findings import Verdict
from allranks.protocol.jsontext import Json
from allranks.protocol.run_facts import Fact, Stamped
from allranks.runs.documents import (
    PreflightDocument,
    ResultDocument,
    RunDocument,
    StatusDocument,
    SuiteResult,
)


@dataclass(frozen=True)
class Piece:
    """Lines of a log that follow one another, the first with the number `first` (from 1).

    The first `context` of them are not shown: they tell a redactor what goes on where the piece begins.
    """

    first: int
    lines: tuple[str, ...]
    context: int = 0


class LogName(NamedTuple):
    """A log of an attempt: its path in the run directory, and whose it is. Without a rank it is of its node.

    `role`: the part of the run whose node it is."""

    file: str
    node: str
    rank: int | None
    attempt: int
    role: str = ""


@dataclass(frozen=True)
class Excerpt:
    """Beginning, end and telling lines of one log, which has `size` bytes and `total` lines."""

    log: LogName
    size: int
    total: int
    pieces: tuple[Piece, ...]


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
