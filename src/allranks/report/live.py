"""What a person sees while a run goes on: a table of nodes below the log on a terminal, else plain lines."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO

from .fold import Folder
from .text import closing_lines, event_line, opening_lines

Document = dict[str, Any]
FLUSH_EVERY = 0.2
REDRAW_EVERY = 0.5
NODES_SHOWN = 32
HELD = 1000  # lines kept while a question is open


class View:
    """Events and output as they come; on a terminal a line a node below them."""

    def __init__(self, fold: bool = True, stream: TextIO | None = None) -> None:
        self._out = stream or sys.stdout
        self._terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._colour = self._terminal and "NO_COLOR" not in os.environ
        self._folder = Folder(fold, self._colour)
        self._nodes = 1
        self._table: list[str] = []
        self._drawn = 0
        self._paused, self._held = False, list[str]()
        self._status: Document | None = None
        self._next_flush = self._next_draw = 0.0

    def opening(self, info: Document) -> None:
        """The first lines."""
        self._nodes = len(info["nodes"])
        self._print(opening_lines(info))

    def event(self, event: Document) -> None:
        """An event of events.jsonl."""
        line = event_line(event, self._nodes)
        if line is not None:
            self._print([*self._folder.lines(time.time()), *line.split("\n")])

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Bytes of a rank's log."""
        self._folder.feed(node_name, rank, data, now)

    def status(self, document: Document, now: float) -> None:
        """The status.json document."""
        self._status = document
        self._folder.ranks = int(document.get("world_size") or 0)

    def tick(self, now: float) -> None:
        """Shows what is due."""
        if now >= self._next_flush:
            self._next_flush = now + FLUSH_EVERY
            lines = self._folder.lines(now)
            if lines:
                self._print(lines)
        if self._terminal and self._status is not None and now >= self._next_draw:
            self._next_draw = now + REDRAW_EVERY
            self._table = table_lines(self._status, now, self._width())
            self._print([])

    def closing(self, result: Document, verdict: Document | None) -> None:
        """The last lines; the table goes."""
        self._table = []
        self._print([*self._folder.rest(time.time()), *closing_lines(result, verdict)])

    def pause(self) -> None:
        """Nothing is drawn until `resume`: somebody is being asked something."""
        self._paused = True

    def resume(self) -> None:
        """Shows what has come meanwhile; the table is drawn anew below it."""
        self._paused, self._drawn = False, 0
        held, self._held = self._held[-HELD:], []
        self._print(held)

    # -- drawing -----------------------------------------------------------------------------------

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._out.fileno()).columns
        except OSError:
            return 100

    def _print(self, lines: list[str]) -> None:
        """Log lines above, the table again below them, in one write."""
        if self._paused:
            self._held += lines
            return
        # the return comes first: an echoed ^C may have moved the cursor
        text = f"\r\x1b[{self._drawn}A\x1b[J" if self._drawn else ""
        text += "".join(line + "\n" for line in lines)
        text += "".join(line + "\n" for line in self._table)
        self._drawn = len(self._table)
        try:
            self._out.write(text)
            self._out.flush()
        except (BlockingIOError, BrokenPipeError, OSError):
            self._terminal, self._table, self._drawn = False, [], 0  # nobody reads any more: the run goes on


def table_lines(status: Document, now: float, width: int) -> list[str]:
    """One line a node: name, state, ranks, step, rate, time since the last output."""
    nodes = status.get("nodes", [])
    name_width = max([len(label(n)) for n in nodes] + [4])
    lines = ["─" * min(width - 1, 72)]
    for node in nodes[:NODES_SHOWN]:
        lines.append(node_line(node, now, name_width)[: width - 1])
    if len(nodes) > NODES_SHOWN:
        lines.append(f"… and {len(nodes) - NODES_SHOWN} nodes more: allranks status"[: width - 1])
    return lines


def label(node: Document) -> str:
    """The node's name; where the list has an address, the host's own name with the address beside it."""
    return f"{node['name']} ({node['address']})" if node.get("address") else str(node["name"])


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


class JsonView(View):
    """--json: training output on standard error, nothing of ours on standard output."""

    def __init__(self) -> None:
        super().__init__(fold=False, stream=sys.stderr)
        self._terminal = False

    def opening(self, info: Document) -> None:
        """Nothing: the document at the end has it."""

    def event(self, event: Document) -> None:
        """Nothing: events.jsonl has it."""

    def status(self, document: Document, now: float) -> None:
        """Nothing: status.json has it."""

    def closing(self, result: Document, verdict: Document | None) -> None:
        """The rest of the training output."""
        self._print(self._folder.rest(time.time()))
