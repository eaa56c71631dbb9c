"""What a person sees while a run goes on: a table of nodes below the log on a terminal, else plain lines."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TextIO

from allranks.findings import Finding, Verdict, Where
from allranks.protocol.run_facts import EndingBegun, Fact, OutputDropped, RetryDecided, Stamped
from allranks.runs.documents import ResultDocument, RunOpened, StatusDocument
from allranks.runs.view import View

from .fold import Folder
from .nodetable import NODES_SHOWN, table_lines
from .screen import Screen
from .sentences import closing_lines, event_line, finding_line, opening_lines
from .terminal import paint_line, shows_colour

FLUSH_EVERY = 0.2
REDRAW_EVERY = 0.5
FAILURES_SHOWN = 8
AROUND_NODES = 6  # lines that the table has beside its nodes, and one of the log
HELD = 1000  # lines kept while a question is open


class OutputView(View):
    """--json: the ranks' output on standard error, and nothing of ours: the document at the end has it."""

    def __init__(self, fold: bool = False, stream: TextIO | None = None) -> None:
        self.screen = Screen(stream or sys.stderr)
        self._colour = shows_colour(self.screen.stream)
        self._folder = Folder(fold, colour=self._colour, shorten=fold)
        self._table: list[str] = []
        self._paused = False
        self.held_lines = deque[str](maxlen=HELD)
        self._flushed = 0.0

    def event(self, stamped: Stamped[Fact]) -> None:
        """Note that logs are not complete."""
        fact = stamped.fact
        if isinstance(fact, OutputDropped) or (
            isinstance(fact, Finding) and fact.id == "disk-full" and fact.where == Where()
        ):
            self.screen.logs_complete = self._folder.logs_complete = False

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Bytes of a rank's log."""
        self._folder.feed(node_name, rank, data, now)

    def status(self, status: StatusDocument, now: float) -> None:
        """Note how many ranks may say the same."""
        self._folder.ranks = status.world_size or 0

    def tick(self, now: float) -> None:
        """Show the lines that are due."""
        if _is_due(self._flushed, now, FLUSH_EVERY):
            self._flushed = now
            lines = self._folder.lines(now)
            if lines:
                self._print(lines)

    def pause(self) -> None:
        """Nothing is drawn until `resume`: a question is on the screen."""
        self._paused = True

    def resume(self) -> None:
        """Show what has come meanwhile, and draw the table below it."""
        self._paused = False
        self.screen.forget_table()
        held = list(self.held_lines)
        self.held_lines.clear()
        self._print(held)

    def closing(self, result: ResultDocument) -> None:
        """Show the rest of the output."""
        self._finish([])

    def _print(self, lines: list[str]) -> None:
        if self._paused:
            self.held_lines.extend(lines)
        else:
            self.screen.show(lines, self._table)

    def _finish(self, lines: list[str]) -> None:
        self._table = []
        self._paused = False
        last = map(self._coloured, lines)
        self.screen.finish([*self.held_lines, *self._folder.rest(time.time()), *last])
        self.held_lines.clear()

    def _coloured(self, text: str) -> str:
        return "\n".join(paint_line(line, self._colour) for line in text.split("\n"))


class QuietView(OutputView):
    """-q: the program's output, and how the run ended where it failed."""

    def __init__(self, fold: bool = True, stream: TextIO | None = None) -> None:
        super().__init__(fold, stream or sys.stdout)

    def closing(self, result: ResultDocument) -> None:
        """Show the rest of the output, and what failed."""
        self._finish(closing_lines(result) if result.exit else [])


class LiveView(OutputView):
    """Events and output as they come; on a terminal a line a node below them.

    `began`: when the run did (unix seconds); None: when its opening is shown.
    """

    def __init__(self, fold: bool = True, stream: TextIO | None = None, began: float | None = None) -> None:
        super().__init__(fold, stream or sys.stdout)
        self._terminal = self.screen.is_terminal
        self._began = began
        self._nodes = 1
        self._failures: list[Finding] = []  # findings that end the attempt: its verdict says most of them
        self._end: tuple[str, int | None] | None = None  # reason and attempt of the end that was said
        self._status: StatusDocument | None = None
        self._redrawn = 0.0

    def say(self, label: str, text: str) -> None:
        """Write a line of the start, from any thread: it goes past the table."""
        sys.stdout.write(f"{label:<10}{text}\n")
        sys.stdout.flush()

    def opening(self, opened: RunOpened) -> None:
        """Show the first lines: run, command, nodes."""
        self._nodes = len(opened.nodes)
        if self._began is None:
            self._began = time.time()
        self._print(opening_lines(opened))

    def event(self, stamped: Stamped[Fact]) -> None:
        """Show an event of events.jsonl, where a person wants to see it."""
        super().event(stamped)
        fact = stamped.fact
        if isinstance(fact, Finding) and fact.status == "fail":
            self._failures.append(fact)
            return
        line = event_line(stamped, self._nodes)
        if line is None or self._is_said(stamped):
            return
        others = self._take_failures(fact.verdict) if isinstance(fact, RetryDecided) else []
        self._print([*self._folder.lines(time.time()), *map(self._coloured, [*others, line])])

    def _is_said(self, stamped: Stamped[Fact]) -> bool:
        """Tell whether an end has been said. With less time for the same reason it comes again, behind a note on it."""
        if not isinstance(stamped.fact, EndingBegun):
            return False
        end = (stamped.fact.reason, stamped.attempt)
        is_said = end == self._end and bool(stamped.fact.grace)
        self._end = end
        return is_said

    def _take_failures(self, verdict: Verdict | None) -> list[str]:
        """Write the failures that a verdict does not say, few of many; they are said once."""
        lines = [finding_line(finding) for finding in self._failures if not _says(verdict, finding)]
        self._failures.clear()
        more = len(lines) - FAILURES_SHOWN
        shown = lines[:FAILURES_SHOWN]
        if more > 0:
            shown.append(f"… {more} more, all are in events.jsonl")
        return shown

    def status(self, status: StatusDocument, now: float) -> None:
        """Keep the states of all ranks for the table."""
        super().status(status, now)
        self._status = status

    def tick(self, now: float) -> None:
        """Show the lines that are due, and the table."""
        super().tick(now)
        if self._terminal and self._status is not None and _is_due(self._redrawn, now, REDRAW_EVERY):
            self._redrawn = now
            width, height = self.screen.size()
            most = max(1, min(NODES_SHOWN, height - AROUND_NODES))
            self._table = table_lines(self._status, now, width, most, self._began, self._colour)
            self._print([])

    def closing(self, result: ResultDocument) -> None:
        """Remove the table, and show the last lines."""
        self._finish([*self._take_failures(result.verdict), *closing_lines(result)])


def _says(verdict: Verdict | None, finding: Finding) -> bool:
    return verdict is not None and (finding.id == verdict.cause or finding.message in verdict.finding.message)


def _is_due(last: float, now: float, every: float) -> bool:
    """Also where the clock was set back."""
    return not 0 <= now - last < every


def choose_view(as_json: bool, fold: bool = True, quiet: bool = False, began: float | None = None) -> View:
    """Make the view that a command shows a run with.

    `fold`: the same line of all ranks is one. `began`: when the run did (unix seconds), where that is known.
    """
    if as_json:
        return OutputView()
    return QuietView(fold) if quiet else LiveView(fold, began=began)
