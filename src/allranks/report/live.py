"""What a person sees while a run goes on: a table of nodes below the log on a terminal, else plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from typing import TextIO

from allranks.runs.documents import ResultDocument
from allranks.text import count_of, name_with

from .fold import Folder
from .screen import Screen
from .sentences import Document, closing_lines, event_line, opening_lines
from .terminal import clean

FLUSH_EVERY = 0.2
REDRAW_EVERY = 0.5
NODES_SHOWN = 32
HELD = 1000  # lines kept while a question is open


class LiveView:
    """Events and output as they come; on a terminal a line a node below them."""

    def __init__(self, fold: bool = True, stream: TextIO | None = None) -> None:
        self._screen = Screen(stream or sys.stdout)
        self._terminal = self._screen.is_terminal
        self._folder = Folder(fold, colour=self._terminal and "NO_COLOR" not in os.environ)
        self._nodes = 1
        self._table: list[str] = []
        self._paused, self._held = False, deque[str](maxlen=HELD)
        self._status: Document | None = None
        self._flushed = self._redrawn = 0.0

    def say(self, label: str, text: str) -> None:
        """A line of the start, from any thread: it goes past the table."""
        sys.stdout.write(f"{label:<10}{text}\n")
        sys.stdout.flush()

    def opening(self, info: Document) -> None:
        """The first lines."""
        self._nodes = len(info["nodes"])
        self._print(opening_lines(info))

    def event(self, event: Document) -> None:
        """An event of events.jsonl."""
        if event.get("event") == "dropped" or event.get("id") == "disk-full":
            self._screen.logs_complete = self._folder.logs_complete = False
        line = event_line(event, self._nodes)
        if line is not None:
            self._print([*self._folder.lines(time.time()), line])

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Bytes of a rank's log."""
        self._folder.feed(node_name, rank, data, now)

    def status(self, document: Document, now: float) -> None:
        """The status.json document."""
        self._status = document
        self._folder.ranks = int(document.get("world_size") or 0)

    def tick(self, now: float) -> None:
        """Shows what is due."""
        if _is_due(self._flushed, now, FLUSH_EVERY):
            self._flushed = now
            lines = self._folder.lines(now)
            if lines:
                self._print(lines)
        if self._terminal and self._status is not None and _is_due(self._redrawn, now, REDRAW_EVERY):
            self._redrawn = now
            width, height = self._screen.size()
            self._table = table_lines(self._status, now, width, max(1, min(NODES_SHOWN, height - 4)))
            self._print([])

    def closing(self, result: ResultDocument) -> None:
        """The last lines; the table goes."""
        self._finish(closing_lines(result))

    def pause(self) -> None:
        """Nothing is drawn until `resume`: somebody is being asked something."""
        self._paused = True

    def resume(self) -> None:
        """Shows what has come meanwhile; the table is drawn anew below it."""
        self._paused = False
        self._screen.forget_table()
        held = list(self._held)
        self._held.clear()
        self._print(held)

    # -- drawing -----------------------------------------------------------------------------------

    def _print(self, lines: list[str]) -> None:
        if self._paused:
            self._held.extend(lines)
        else:
            self._screen.show(lines, self._table)

    def _finish(self, lines: list[str]) -> None:
        self._table = []
        self._paused = False
        self._screen.finish([*self._held, *self._folder.rest(time.time()), *lines])
        self._held.clear()


def _is_due(last: float, now: float, every: float) -> bool:
    """Also where the clock was set back."""
    return not 0 <= now - last < every


def table_lines(status: Document, now: float, width: int, most: int = NODES_SHOWN) -> list[str]:
    """One line a node, `most` at most: name, state, ranks, step, rate, time since the last output."""
    nodes = status.get("nodes", [])
    name_width = max([len(label(n)) for n in nodes] + [4])
    lines = ["─" * min(width - 1, 72)]
    for node in nodes[:most]:
        lines.append(clean(node_line(node, now, name_width), colour=False)[: width - 1])
    if len(nodes) > most:
        lines.append(f"… and {count_of(len(nodes) - most, 'more node')}: allranks status"[: width - 1])
    return lines


def label(node: Document) -> str:
    """The node's name; where the list has an address, the host's own name with the address beside it."""
    return name_with(str(node["name"]), str(node.get("address") or ""))


def node_line(node: Document, now: float, name_width: int = 4) -> str:
    """A node in the live table; blank where nothing is known."""
    ranks = node.get("ranks", [])
    counts: dict[str, int] = {}
    for rank in ranks:
        counts[rank["state"]] = counts.get(rank["state"], 0) + 1
    states = ", ".join(f"{n} {state}" for state, n in counts.items())
    steps = [r["step"] for r in ranks if r.get("step") is not None]
    rates = [r["rate"] for r in ranks if r.get("rate") is not None]
    outputs = [r["last_output"] for r in ranks if r.get("last_output") is not None]
    step = f"step {min(steps)}" if steps else ""
    rate = f"{min(rates):.2f} steps/s" if rates else ""
    quiet = f"output {max(0.0, now - max(outputs)):.0f} s ago" if outputs else ""
    return f"{label(node):<{name_width}}  {node['state']:<10}  {states:<22}  {step:<10}  {rate:<13}  {quiet}".rstrip()


class JsonView(LiveView):
    """--json: training output on standard error, nothing of ours on standard output."""

    def __init__(self) -> None:
        super().__init__(fold=False, stream=sys.stderr)
        self._terminal = False  # no table

    def say(self, label: str, text: str) -> None:
        """Nothing: the document at the end has it."""

    def opening(self, info: Document) -> None:
        """Nothing: the document at the end has it."""

    def event(self, event: Document) -> None:
        """Nothing: events.jsonl has it."""

    def status(self, document: Document, now: float) -> None:
        """Nothing: status.json has it."""

    def closing(self, result: ResultDocument) -> None:
        """The rest of the training output."""
        self._finish([])
