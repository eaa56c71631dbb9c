"""The audit of a running program's data: rows as they arrive, judged once all ranks have reported (reads files)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from allranks.data.arrivals import Arrivals
from allranks.data.auditing import read_rows
from allranks.data.case import CHECK, Coverage, Layout
from allranks.data.rows import LoaderRow, RankPlace, RankRow, Row, gather
from allranks.data.split_findings import cases_of, judge, judge_case
from allranks.findings import Finding
from allranks.protocol.codec import encode
from allranks.protocol.frames import AUDIT, Stream
from allranks.runs.directory import RunDirectory

from .states import Audited
from .tasks import start_task

REPORTED = ("ok", "warn", "fail")  # while the program runs; what could not be seen is reported at the end


class Auditor:
    """Of one run: `take` what arrives, `look` now and then while ranks run, `conclude` after each attempt."""

    def __init__(self, batches: int, run: RunDirectory) -> None:
        self._batches = batches
        self._run = run
        self._attempt = 0
        self._arrivals = Arrivals(batches)
        self._reported: set[tuple[str, str]] = set()
        self._judging: asyncio.Task[None] | None = None

    def take(self, stream: Stream, data: bytes, now: float) -> None:
        """Bytes of a rank's rows have been written; `now` by the clock of the limits."""
        if stream.kind != AUDIT:
            return
        self._begin(max(stream.attempt, self._attempt))
        if stream.attempt == self._attempt:
            self._arrivals.take(stream.rank, data, now)

    def _begin(self, attempt: int) -> None:
        if attempt != self._attempt:
            self._attempt = attempt
            self._arrivals = Arrivals(self._batches)
            self._reported = set()

    def look(self, layout: Layout, feed: Callable[[Audited], None]) -> None:
        """Judge a loader of which all ranks have reported enough, in a thread, and feed what is new."""
        if self._judging is not None and not self._judging.done():
            return
        datasets = frozenset(key.dataset for key in self._arrivals.due(len(layout), time.monotonic()))
        if datasets:
            self._judging = start_task(self._judge(datasets, layout, feed))

    async def _judge(self, datasets: frozenset[str], layout: Layout, feed: Callable[[Audited], None]) -> None:
        attempt = self._attempt
        findings = await asyncio.to_thread(self._read, datasets, layout)
        if findings and attempt == self._attempt:
            feed(Audited(attempt, findings))

    def _read(self, datasets: frozenset[str], layout: Layout) -> tuple[Finding, ...]:
        """Judge the loaders of these datasets, and return the findings that were not reported before."""
        try:
            rows = [row for row in self._rows(layout) if _is_of(row, datasets)]
            ranks, loaders = gather(_of_loaders(rows))
            ranks = {rank: ranks.get(rank, RankPlace()) for rank in layout}
            return self._fresh(
                [
                    (case.audited.name, f)
                    for case in cases_of(ranks, loaders, layout)
                    for f in judge_case(case, set(ranks))
                    if f.status in REPORTED
                ]
            )
        except Exception as error:  # the program must not end because we cannot read
            return self._fresh([("", _failed(error))])

    def conclude(self, layout: Layout, attempt: int) -> tuple[tuple[Finding, ...], list[Finding]]:
        """After the end of an attempt: everything, written to evidence/audit/ too, and what was not reported before."""
        self._begin(attempt)
        try:
            rows = self._rows(layout)
            ranks, loaders = gather(rows)
            findings = tuple(judge(rows, layout))
            coverage = [row for case in cases_of(ranks, loaders, layout) for row in case.coverage()]
        except Exception as error:
            findings = (_failed(error),)
            coverage = []
        self._write(findings, coverage)
        reported = {id for _, id in self._reported}
        return findings, [f for f in findings if f.id not in reported]

    def _rows(self, layout: Layout) -> list[Row]:
        return [row for rank in sorted(layout) for row in read_rows(self._path(rank), rank)]

    def _path(self, rank: int) -> Path:
        return self._run.log_path(0, "", AUDIT, rank, self._attempt)

    def _fresh(self, findings: list[tuple[str, Finding]]) -> tuple[Finding, ...]:
        new = [(name, one) for name, one in findings if (name, one.id) not in self._reported]
        self._reported.update((name, one.id) for name, one in new)
        return tuple(one for _, one in new)

    def _write(self, findings: tuple[Finding, ...], coverage: list[Coverage]) -> None:
        folder = self._path(0).parent
        if not folder.is_dir():
            return
        documents = [one.to_json() for one in findings]
        RunDirectory(folder).write_document("audit.json", {"findings": documents, "coverage": encode(coverage)})


def _failed(error: Exception) -> Finding:
    text = f"the audit of the data failed itself with {type(error).__name__}: {error}"
    return Finding("data-audit", "unknown", text, "report it, with evidence/audit/ of the run directory", check=CHECK)


def _is_of(row: Row, datasets: frozenset[str]) -> bool:
    return not isinstance(row, LoaderRow) or row.name in datasets


def _of_loaders(rows: list[Row]) -> list[Row]:
    """Without the rows of loaders whose own row is not among them."""
    loaders = {(row.rank, row.loader) for row in rows if isinstance(row, LoaderRow)}
    return [row for row in rows if isinstance(row, RankRow) or (row.rank, row.loader) in loaders]
