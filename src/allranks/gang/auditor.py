"""The audit of a running program's data: the ranks' rows, judged once all have noted enough (reads files)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from allranks.data.auditing import Audit, conclude, read_rows
from allranks.data.case import CHECK, Layout, LoaderCase
from allranks.data.rows import Row, gather
from allranks.data.split_findings import cases_of, judge_case
from allranks.findings import Finding
from allranks.protocol.codec import encode
from allranks.protocol.frames import AUDIT, Stream
from allranks.runs.directory import RunDirectory

from .states import Audited
from .tasks import start_task

REPORTED = ("ok", "warn", "fail")  # while the program runs; what could not be seen is reported at the end
QUIET = 30.0  # seconds without news after which ranks that have no such loader are waited for no longer
SHARE = 0.1  # of the time, that reading all rows again may take


class Auditor:
    """Of one run: `take` what arrives, `look` now and then while ranks run, `conclude` after each attempt."""

    def __init__(self, batches: int, run: RunDirectory) -> None:
        self._batches = batches
        self._run = run
        self._attempt = 0
        self._news_at = 0.0  # when rows came last, by the clock of the limits
        self._looked_at = (0.0, True)  # the news that were judged, and whether it was quiet then
        self._next_at = 0.0
        self._reported: set[tuple[str, str]] = set()
        self._judging: asyncio.Task[None] | None = None

    def take(self, stream: Stream, now: float) -> None:
        """Rows of a rank have been written; `now` by the clock of the limits."""
        if stream.kind == AUDIT:
            self._begin(max(stream.attempt, self._attempt))
            self._news_at = now

    def _begin(self, attempt: int) -> None:
        if attempt != self._attempt:
            self._attempt = attempt
            self._reported = set()

    def look(self, layout: Layout, feed: Callable[[Audited], None]) -> None:
        """Judge the loaders of which all ranks have noted enough, in a thread, and feed what is new."""
        now = time.monotonic()
        seen = (self._news_at, now - self._news_at >= QUIET)
        is_judging = self._judging is not None and not self._judging.done()
        if is_judging or seen == self._looked_at or now < self._next_at:
            return
        self._looked_at = seen
        self._judging = start_task(self._judge(layout, seen[1], feed))

    async def _judge(self, layout: Layout, is_quiet: bool, feed: Callable[[Audited], None]) -> None:
        attempt = self._attempt
        began = time.monotonic()
        findings = await asyncio.to_thread(self._read, layout, is_quiet)
        now = time.monotonic()
        self._next_at = now + (now - began) / SHARE
        if findings and attempt == self._attempt:
            feed(Audited(attempt, findings))

    def _read(self, layout: Layout, is_quiet: bool) -> tuple[Finding, ...]:
        try:
            cases = cases_of(gather(self._rows(layout))[1], layout)
            due = [case for case in cases if self._is_due(case, is_quiet)]
            findings = [(case.name, one) for case in due for one in judge_case(case, set(layout))]
        except Exception as error:  # the program must not end because we cannot read
            findings = [("", _failed(error))]
        new = [(name, one) for name, one in findings if one.status in REPORTED and (name, one.id) not in self._reported]
        self._reported.update((name, one.id) for name, one in new)
        return tuple(one for _, one in new)

    def _is_due(self, case: LoaderCase, is_quiet: bool) -> bool:
        """Whether all ranks have noted enough of a loader, and of as many epochs; once it is quiet, those that have it.

        A rank that has no such loader may come to it later.
        """
        shards = case.shards.values()
        have_enough = all(shard.noted >= self._batches or shard.batches is not None for shard in shards)
        are_alike = len(shards) == len(case.layout) and len({len(shard.orders) for shard in shards}) == 1
        return have_enough and (are_alike or is_quiet)

    def conclude(self, layout: Layout, attempt: int) -> tuple[tuple[Finding, ...], list[Finding]]:
        """After the end of an attempt: everything, written to evidence/audit/ too, and what was not reported before."""
        self._begin(attempt)
        try:
            answer = conclude(self._rows(layout), layout)
        except Exception as error:
            answer = Audit((_failed(error),), ())
        findings = answer.findings
        folder = self._path(0).parent
        if folder.is_dir():
            RunDirectory(folder).write_document("audit.json", encode(answer))
        reported = {id for _, id in self._reported}
        return findings, [f for f in findings if f.id not in reported]

    def _rows(self, layout: Layout) -> list[Row]:
        return [row for rank in sorted(layout) for row in read_rows(self._path(rank), rank)]

    def _path(self, rank: int) -> Path:
        return self._run.log_path(0, "", AUDIT, rank, self._attempt)


def _failed(error: Exception) -> Finding:
    text = f"the audit of the data failed itself with {type(error).__name__}: {error}"
    return Finding("data-audit", "unknown", text, "report it, with evidence/audit/ of the run directory", check=CHECK)
