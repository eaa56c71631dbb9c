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
    like by their file; `checks` is {check: {node: status}}; `logs_left_out` counts logs without an excerpt."""

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


# -- what a page takes of the documents: each field has a default, so that a damaged file is shown as far as it goes ---


@dataclass(frozen=True)
class VerdictText:
    """verdict.json, or the verdict of an attempt."""

    message: str = ""
    status: str = ""
    cause: str = ""
    confidence: float | None = None
    where: Mapping[str, object] = field(default_factory=dict)
    victims: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    runners_up: object = ()
    detected_after_s: float | None = None
    decision: str = ""

    @property
    def confidence_text(self) -> str:
        """Write `85%`; empty for what is no probability."""
        return f"{self.confidence:.0%}" if self.confidence is not None and 0 <= self.confidence <= 1 else ""


@dataclass(frozen=True)
class RunnerUp:
    """What else failed."""

    id: str
    message: str


@dataclass(frozen=True)
class AttemptRecord:
    """One of several attempts."""

    attempt: int
    outcome: str = ""
    verdict: object = None


@dataclass(frozen=True)
class Timing:
    """Seconds of the parts of a run."""

    total: float | None = None


@dataclass(frozen=True)
class ResultText:
    """result.json of a run or of a test."""

    exit: int | None = None
    ok: bool = False
    suite: str | None = None
    meaning: str = ""
    nodes: tuple[str, ...] = ()
    started: float | None = None
    timing: Timing = Timing()
    findings: object = ()
    attempts: object = ()


@dataclass(frozen=True)
class ControllerRecord:
    """The machine that launched a run."""

    host: str | None = None


@dataclass(frozen=True)
class RunText:
    """run.json; `source` says where the nodes came from."""

    source: str = ""
    command: tuple[str, ...] = ()
    started: float | None = None
    workdir: str | None = None
    versions: Mapping[str, object] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    controller: ControllerRecord = ControllerRecord()
    nodes: object = ()


@dataclass(frozen=True)
class NodeText:
    """A node of run.json or status.json; `ranks` are those that it has."""

    name: str
    address: str | None = None
    ranks: object = ()


@dataclass(frozen=True)
class RankText:
    """A rank of status.json."""

    rank: int


@dataclass(frozen=True)
class Master:
    """Where the ranks meet."""

    address: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class StatusText:
    """status.json."""

    world_size: int | None = None
    master: Master = Master()
    nodes: object = ()
