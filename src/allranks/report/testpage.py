"""The page of `allranks test`: one file, nothing fetched from elsewhere, everything escaped (reads its templates).

Figures come from other machines: each list has an end, and what is not as expected is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allranks.fabric.metric_rows import BandwidthRow, CollectiveRow, Failure, SuiteHang, WrongElement
from allranks.protocol.codec import decode_each
from allranks.runs.documents import StageResult, SuiteResult
from allranks.text import count_of, cut, format_ranks, format_rate, format_size_option, format_time

from .linkmaps import link_map
from .page import LINES, capped, findings_of, moment, render
from .plot import busbw_plot

ROWS = 500  # of a table
NODES = 64  # by name
NAME_LENGTH = 100
WORDS = {"pass": "PASS", "fail": "FAIL", "skip": "skip", "hang": "HANG"}
LEVELS = {"pass": "ok", "fail": "fail", "skip": "skipped", "hang": "fail"}


def test_page(result: SuiteResult) -> str:
    """Write the result of a test as HTML."""
    collectives = decode_each(CollectiveRow, result.collectives[:ROWS])
    bandwidth = decode_each(BandwidthRow, result.bandwidth)
    return render(
        "test.html",
        run=result.run or "test",
        passed=result.ok,
        summary=_summary(result),
        findings=findings_of(result.findings),
        tests=[_test(row) for row in collectives],
        plot=busbw_plot(bandwidth),
        rates=[_rate(row) for row in bandwidth[:ROWS]],
        links=link_map(result.links, [cut(node, NAME_LENGTH) for node in result.nodes]),
        stages=[_stage(stage) for stage in result.stages[:LINES]],
        statement=result.statement[:ROWS],
        environment=_environment(result),
    )


test_page.__test__ = False  # type: ignore[attr-defined]  # for pytest


def _summary(result: SuiteResult) -> str:
    parts = []
    if result.suite:
        parts.append(f"suite {result.suite}")
    if result.nodes:
        ranks = f"{count_of(result.ranks, 'rank')} on " if result.ranks else ""
        parts.append(ranks + count_of(len(result.nodes), "node"))
    if moment(result.started):
        parts.append(f"started {moment(result.started)}")
    return "; ".join([*parts, f"exit {result.exit}"])


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


def _stage(stage: StageResult) -> StageRow:
    groups = sorted(stage.groups, key=lambda group: group.ok)
    passed = sum(group.ok for group in groups)
    rows = []
    for group in groups[:ROWS]:
        seconds = "" if group.seconds is None else format_time(group.seconds)
        rows.append((_names(group.nodes), group.ok, seconds))
    left_out = max(0, len(groups) - ROWS)
    return StageRow(stage.name, stage.meaning, len(groups) - passed, passed, left_out, rows)


def _names(nodes: Sequence[str]) -> str:
    names = [cut(node, NAME_LENGTH) for node in nodes]
    if len(names) > NODES:
        return f"{names[0]}, {names[1]}, … {names[-1]} ({len(names)} nodes)"
    return ", ".join(names)


def _environment(result: SuiteResult) -> list[tuple[str, str]]:
    rows = (
        ("run", result.run),
        ("directory", result.directory),
        ("suite", result.suite),
        ("nodes", _names(result.nodes)),
        ("ranks", str(result.ranks or "")),
        ("started", moment(result.started)),
        ("exit", str(result.exit)),
    )
    return [(name, value) for name, value in rows if value]
