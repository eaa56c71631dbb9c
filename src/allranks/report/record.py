"""What a run left, read and bounded, as a page or a bundle takes it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """Lines of a log that follow one another, the first with the number `first` (from 1).

    The first `context` of them are not shown: they tell a redactor what goes on where the piece begins.
    """

    first: int
    lines: tuple[str, ...]
    context: int = 0


@dataclass(frozen=True)
class Excerpt:
    """Beginning, end and telling lines of one log; `file` is its path in the run directory."""

    file: str
    node: str
    rank: int | None
    attempt: int
    size: int
    lines: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class SideRunRecord:
    """A run of tests or checks beside the run: its directory's name, its result, its measured links."""

    name: str
    result: Document
    links: tuple[Document, ...] = ()


@dataclass(frozen=True)
class Record:
    """Documents are empty where the file is absent. `texts` are stacks, flight-recorder dumps, kernel logs and the
    like by their file; `checks` is {check: {node: status}}; `logs_left_out` counts logs without an excerpt,
    `progress` are the rows of evidence/progress.jsonl."""

    name: str
    directory: str
    state: str
    run: Document
    result: Document
    status: Document
    verdict: Document
    events: tuple[Document, ...] = ()
    preflight: Document = field(default_factory=dict)
    tests: tuple[SideRunRecord, ...] = ()
    rows: Mapping[str, list[Document]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    excerpts: tuple[Excerpt, ...] = ()
    logs_left_out: int = 0
    progress: tuple[Document, ...] = ()
