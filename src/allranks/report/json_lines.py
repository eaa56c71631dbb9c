"""A run as JSON lines on standard output: events, output and states as they come, the result last."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TextIO

from allranks.protocol.codec import document_line
from allranks.protocol.run_facts import AttemptStart, Fact, Stamped, write_line
from allranks.runs.documents import ResultDocument, RunOpened, StatusDocument
from allranks.runs.replay import RankOutput, RunLine
from allranks.runs.view import View


class LinesView(View):
    """`join --json`: whoever reads it can rebuild the run directory (`run --k8s` does)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._status = StatusDocument()
        self._offsets: dict[int, int] = {}  # of each rank's log in this attempt

    def _write(self, record: RunLine | ResultDocument) -> None:
        self._stream.write(document_line(record) + "\n")

    def say(self, label: str, text: str) -> None:
        """Write a line for a person. `label` is left out: it says which command this is."""
        self._write(RunLine(text))
        self._stream.flush()

    def opening(self, opened: RunOpened) -> None:
        """Write the first document: run, nodes, command."""
        self._write(RunLine(opening=opened))

    def event(self, stamped: Stamped[Fact]) -> None:
        """Write an event of events.jsonl."""
        if isinstance(stamped.fact, AttemptStart):
            self._offsets.clear()
        self._write(RunLine(event=write_line(stamped)))

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Write bytes of a rank's log, in order, with their offset."""
        offset = self._offsets.get(rank, 0)
        self._offsets[rank] = offset + len(data)
        self._write(RunLine(output=RankOutput.of(node_name, rank, offset, data)))

    def status(self, status: StatusDocument, now: float) -> None:
        """Write the status.json document, where it says something new."""
        if replace(status, t=self._status.t) != self._status:
            self._status = status
            self._write(RunLine(status=status))

    def tick(self, now: float) -> None:
        """Pass on what was written."""
        self._stream.flush()

    def closing(self, result: ResultDocument) -> None:
        """Write the last line: the document that `run --json` prints."""
        self._write(result)
        self._stream.flush()
