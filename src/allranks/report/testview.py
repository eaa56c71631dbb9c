"""What a person sees of `allranks test`: the lines of rank 0 as they are, what happened to nodes, the verdict."""

from __future__ import annotations

import re
import sys
from typing import TextIO

from allranks.findings import Finding
from allranks.protocol.run_facts import Fact, GateProved, NodeBack, NodeLost, NodeSilent, PlainNote, Stamped, TreeListed
from allranks.runs.documents import ResultDocument, SuiteResult

from .live import LiveView
from .sentences import Document, left_lines, verdict_lines

SHOWN = (TreeListed, GateProved, Finding, PlainNote, NodeSilent, NodeBack, NodeLost)
UNNAMED = "  cause   unknown"  # of no label's kind: the sentence says what it is
FINDINGS = 8
LONGEST = 2000  # characters of a line
WARNING = re.compile(r"\[W\d{4} |\[rank\d+\]:\[W\d{4} ")  # of torch's own: they stay in the log


class TestView(LiveView):
    """Rank 0 speaks for all: the others' output is in the logs."""

    __test__ = False  # for pytest

    def __init__(self, silent: bool = False, stream: TextIO | None = None) -> None:
        super().__init__(fold=False, stream=stream or sys.stdout)
        self._terminal = False
        self._silent = silent
        self._rest = b""

    def opening(self, info: Document) -> None:
        """Show what is tested where; nothing where many small gangs follow one another."""
        self._nodes = len(info["nodes"])
        if not self._silent:
            names = ", ".join(n["name"] for n in info["nodes"][:8]) + (", …" if self._nodes > 8 else "")
            self._print([f"test      {info['run']}", f"nodes     {names}"])

    def event(self, stamped: Stamped[Fact]) -> None:
        """Of nodes, not of ranks: those are tests, not a program."""
        if not self._silent and isinstance(stamped.fact, SHOWN):
            super().event(stamped)

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Whole lines of rank 0."""
        if rank != 0 or self._silent:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LONGEST:]
        texts = [line.decode("utf-8", "replace")[:LONGEST] for line in lines]
        self._print([text for text in texts if not WARNING.match(text)])

    def closing(self, result: ResultDocument) -> None:
        """Show the verdict, the other findings, and where the logs are."""
        if self._silent:
            return
        lines = []
        shown = ""
        if result.verdict is not None:
            lines = ["", *(line for line in verdict_lines(result.verdict) if line != UNNAMED)]
            shown = result.verdict.finding.message
        failures = [finding for finding in result.findings if finding.status in ("fail", "unknown")]
        more = [finding.message for finding in failures if finding.message != shown]
        lines += [f"also      {message}" for message in more[:FINDINGS]]
        lines += left_lines(result.left)
        if isinstance(result, SuiteResult) and result.meaning:
            lines += ["", result.meaning]
        word = "passed" if result.exit == 0 else "failed"
        ended = f"{word} after {result.timing.total or 0.0:.1f} s (exit {result.exit})"
        self._finish([*lines, f"{ended}, report in {result.directory}"])


class FailureView(TestView):
    """-q: nothing but the verdict of a test that failed."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(silent=True, stream=stream)

    def closing(self, result: ResultDocument) -> None:
        """Show what failed; nothing where all passed."""
        self._silent = result.exit == 0
        super().closing(result)
