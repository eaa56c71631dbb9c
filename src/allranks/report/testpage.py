"""The page of `allranks test`: one file, nothing fetched from elsewhere, everything escaped (reads its templates).

Figures come from other machines: each list has an end, and what is not as expected is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from allranks.fabric.metric_rows import BandwidthRow, CollectiveRow, Failure, SuiteHang, WrongElement
from allranks.protocol.codec import decode_each
from allranks.runs.documents import SuiteResult
from allranks.text import count_of, cut, format_ranks, format_time

from .linkmaps import link_map
from .page import LINES, capped, findings_of, moment, render

ROWS = 500  # of a table
NODES = 64  # by name
NAME_LENGTH = 100
WORDS = {"pass": "PASS", "fail": "FAIL", "skip": "skip", "hang": "HANG"}
LEVELS = {"pass": "ok", "fail": "fail", "skip": "skipped", "hang": "fail"}


def test_page(result: SuiteResult) -> str:
    """Write the result of a test as HTML."""
    collectives = decode_each(CollectiveRow, result.collectives[:ROWS])
    return render(
        "test.html",
        run=result.run or "test",
        passed=result.ok,
        summary=_summary(result),
        findings=findings_of(result.findings),
        tests=[(row, _details(row)) for row in collectives],
        words=WORDS,
        levels=LEVELS,
        rates=decode_each(BandwidthRow, result.bandwidth[:ROWS]),
        links=link_map(result.links, [cut(node, NAME_LENGTH) for node in result.nodes]),
        stages=result.stages[:LINES],
        rows=ROWS,
        names=_names,
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


def _details(row: CollectiveRow) -> list[str]:
    details = []
    if row.late:
        details.append(f"rank {row.late.rank} came {format_time(row.late.seconds)} late")
    details += capped([_failure(failure) for failure in row.failures])
    if row.hang:
        details += _hang(row.hang)
    return details


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
