"""The page of `allranks test`: one file, nothing fetched from elsewhere, everything escaped (reads its templates).

Figures come from other machines: each list has an end, and what is not as expected is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from allranks.fabric.metric_rows import BandwidthRow, CollectiveRow, Failure, SuiteHang, WrongElement
from allranks.findings import Finding
from allranks.protocol.codec import decode_each, decode_parts
from allranks.protocol.jsontext import Json
from allranks.text import count_of, cut, format_ranks, format_rate, format_size_option, format_time

from .linkmaps import link_maps
from .page import LINES, capped, findings_of, moment, render
from .plot import busbw_plot

ROWS = 500  # of a table
NODES = 64  # by name
NAME_LENGTH = 100
WORDS = {"pass": "PASS", "fail": "FAIL", "skip": "skip", "hang": "HANG"}
LEVELS = {"pass": "ok", "fail": "fail", "skip": "skipped", "hang": "fail"}


@dataclass(frozen=True)
class StageGroup:
    """Nodes that were tested in one gang."""

    nodes: tuple[str, ...]
    ok: bool = False
    seconds: float | None = None


@dataclass(frozen=True)
class Stage:
    """A stage of `--suite staged`."""

    name: str
    meaning: str = ""
    groups: tuple[StageGroup, ...] = ()


@dataclass(frozen=True)
class TestDocument:
    """What result.json says of a test; any part may be absent."""

    run: str = "test"
    suite: str = ""
    directory: str = ""
    ok: bool | None = None
    exit: int | None = None
    nodes: tuple[str, ...] = ()
    ranks: int | None = None
    started: float | None = None
    findings: Json = ()
    collectives: tuple[CollectiveRow, ...] = ()
    bandwidth: tuple[BandwidthRow, ...] = ()
    links: Json = ()
    stages: tuple[Stage, ...] = ()
    statement: tuple[str, ...] = ()
    environment: dict[str, Json] | None = None

    @property
    def passed(self) -> bool:
        """Tell whether it passed, by its exit code where it does not say."""
        return self.exit == 0 if self.ok is None else self.ok


def test_page(value: Json) -> str:
    """Write the document as HTML."""
    document = decode_parts(TestDocument, value)
    return render(
        "test.html",
        run=document.run,
        passed=document.passed,
        summary=_summary(document),
        findings=findings_of(decode_each(Finding, document.findings)),
        tests=[_test(row) for row in document.collectives[:ROWS]],
        plot=busbw_plot(document.bandwidth),
        rates=[_rate(row) for row in document.bandwidth[:ROWS]],
        maps=link_maps(
            decode_each(dict[str, Json], document.links), [cut(node, NAME_LENGTH) for node in document.nodes]
        ),
        stages=[_stage(stage) for stage in document.stages[:LINES]],
        statement=document.statement[:ROWS],
        environment=_environment(document),
    )


test_page.__test__ = False  # type: ignore[attr-defined]  # for pytest
TestDocument.__test__ = False  # type: ignore[attr-defined]


def _summary(document: TestDocument) -> str:
    """Write `suite sync; 4 ranks on 2 nodes; exit 0`."""
    parts = []
    if document.suite:
        parts.append(f"suite {document.suite}")
    if document.nodes:
        ranks = f"{count_of(document.ranks, 'rank')} on " if document.ranks else ""
        parts.append(ranks + count_of(len(document.nodes), "node"))
    if moment(document.started):
        parts.append(f"started {moment(document.started)}")
    if document.exit is not None:
        parts.append(f"exit {document.exit}")
    return "; ".join(parts)


# -- tests and rates -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TestRow:
    """A test, with all that is known of it where it did not pass."""

    name: str
    word: str
    level: str
    ranks: str
    seconds: str
    text: str
    details: list[str]


TestRow.__test__ = False  # type: ignore[attr-defined]


def _test(row: CollectiveRow) -> TestRow:
    details = []
    if row.late:
        details.append(f"rank {row.late.rank} came {format_time(row.late.seconds)} late")
    details += capped([_failure(failure) for failure in row.failures])
    if row.hang:
        details += _hang(row.hang)
    word = WORDS.get(row.status, row.status)
    ranks = str(row.ranks) if row.ranks else ""
    text = row.reason or row.detail
    return TestRow(row.test, word, LEVELS.get(row.status, "unknown"), ranks, format_time(row.seconds), text, details)


def _failure(failure: Failure) -> str:
    """Write `rank 1, round 0, float32, element 3, from rank 2: expected 5, found 0`."""
    if not isinstance(failure, WrongElement):
        return f"rank {failure.rank}: {failure.reason}"
    where = [f"rank {failure.rank}", f"round {failure.round}", failure.kind, f"element {failure.index}"]
    if failure.source is not None:
        where.append(f"from rank {failure.source}")
    return f"{', '.join(where)}: expected {failure.expected}, found {failure.found}"


def _hang(hang: SuiteHang) -> list[str]:
    """Say who had arrived, who had not, who is silent; the stacks."""
    lines = []
    for ranks, state in (
        (hang.arrived, "had arrived"),
        (hang.missing, "had not arrived"),
        (hang.silent, "gave no sign of life"),
    ):
        if ranks:
            lines.append(f"{state}: {format_ranks(ranks)}")
    for rank, calls in list(hang.stacks.items())[:LINES]:
        lines += [f"stack of rank {rank}:", *(f"    {line}" for line in capped(calls))]
    return lines


def _rate(row: BandwidthRow) -> list[str]:
    """Write collective, size, ranks, median, quartiles, algbw, busbw, rounds."""
    times = [format_time(seconds) for seconds in (row.median, row.q1, row.q3)]
    rates = [format_rate(rate) for rate in (row.algbw, row.busbw)]
    return [row.collective, format_size_option(row.size), str(row.ranks), *times, *rates, str(row.rounds)]


# -- stages, environment ---------------------------------------------------------------------------


@dataclass(frozen=True)
class StageRow:
    """A stage: its groups that failed by name, before those that passed."""

    name: str
    meaning: str
    failed: int
    passed: int
    left_out: int
    groups: list[tuple[str, bool, str]]  # names, whether it passed, time


def _stage(stage: Stage) -> StageRow:
    groups = sorted(stage.groups, key=lambda group: group.ok)
    passed = sum(group.ok for group in groups)
    rows = []
    for group in groups[:ROWS]:
        seconds = "" if group.seconds is None else format_time(group.seconds)
        rows.append((_names(group.nodes), group.ok, seconds))
    left_out = max(0, len(groups) - ROWS)
    return StageRow(stage.name, stage.meaning, len(groups) - passed, passed, left_out, rows)


def _names(nodes: Sequence[str]) -> str:
    """Write all names of a few, of many the ends."""
    names = [cut(node, NAME_LENGTH) for node in nodes]
    if len(names) > NODES:
        return f"{names[0]}, {names[1]}, … {names[-1]} ({len(names)} nodes)"
    return ", ".join(names)


def _environment(document: TestDocument) -> list[tuple[str, str]]:
    """List what was tested, where and when; then whatever the document says of it under `environment`."""
    rows: Iterable[tuple[str, Json]] = (
        ("run", document.run),
        ("directory", document.directory),
        ("suite", document.suite),
        ("nodes", _names(document.nodes)),
        ("ranks", document.ranks),
        ("started", moment(document.started)),
        ("exit", document.exit),
        *list((document.environment or {}).items())[:LINES],
    )
    return [(cut(name, NAME_LENGTH), str(value)) for name, value in rows if value not in (None, "")]
