"""What a person sees of `allranks test`: the lines of rank 0 as they are, what happened to nodes, the verdict."""

from __future__ import annotations

import re
from typing import TextIO

from allranks.findings import Finding
from allranks.protocol.run_facts import (
    Fact,
    GateProved,
    NodeBack,
    NodeLost,
    NodeSilent,
    PlainNote,
    Stamped,
    WorkingTree,
)
from allranks.runs.documents import ResultDocument, RunOpened, SuiteResult

from .live import LiveView, OutputView
from .sentences import end_word, left_lines, verdict_lines

SHOWN = (WorkingTree, GateProved, Finding, PlainNote, NodeSilent, NodeBack, NodeLost)
UNNAMED = "  cause   unknown"  # of no label's kind: the sentence says what it is
FINDINGS = 8
NODES = 8  # by name
LONGEST = 2000  # characters of a line
WARNING = re.compile(r"\[W\d{4} |\[rank\d+\]:\[W\d{4} ")  # of torch's own: they stay in the log


class TestView(LiveView):
    """Rank 0 speaks for all: the others' output is in the logs."""

    __test__ = False  # for pytest

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(fold=False, stream=stream)
        self._terminal = False  # no table
        self._rest = b""

    def opening(self, opened: RunOpened) -> None:
        """Show what is tested where."""
        self._nodes = len(opened.nodes)
        names = ", ".join(node.name for node in opened.nodes[:NODES]) + (", …" if self._nodes > NODES else "")
        self._print([f"test      {opened.run}", f"nodes     {names}"])

    def event(self, stamped: Stamped[Fact]) -> None:
        """Of nodes, not of ranks: those are tests, not a program."""
        if isinstance(stamped.fact, SHOWN):
            super().event(stamped)

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Whole lines of rank 0."""
        if rank != 0:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LONGEST:]
        texts = [line.decode("utf-8", "replace")[:LONGEST] for line in lines]
        self._print([text for text in texts if not WARNING.match(text)])

    def closing(self, result: ResultDocument) -> None:
        """Show the verdict, the other findings, and where the logs are."""
        self._finish(end_of_test(result))


class FailureView(OutputView):
    """-q: nothing but the verdict of a test that failed."""

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Show nothing: it is in the logs."""

    def closing(self, result: ResultDocument) -> None:
        """Show what failed; nothing where all passed."""
        self._finish(end_of_test(result) if result.exit else [])


def end_of_test(result: ResultDocument) -> list[str]:
    """Write the end of a test: the verdict, the other findings, and where the logs are."""
    lines: list[str] = []
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
    ended = f"{end_word(result.exit, 'passed')} after {result.timing.total or 0.0:.1f} s (exit {result.exit})"
    return [*lines, f"{ended}, report in {result.directory}"]
