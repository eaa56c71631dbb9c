"""allranks top: a run at a glance, drawn again each second until its end."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import deque
from dataclasses import replace

from allranks.engines import settle
from allranks.exitcodes import DONE
from allranks.findings import Finding
from allranks.protocol.frames import METRICS
from allranks.protocol.jsontext import DecodeError, Json, read_metrics
from allranks.protocol.run_facts import AttemptStart, Fact, Stamped
from allranks.report.fullscreen import FullScreen, is_interactive
from allranks.report.nodetable import without_clock
from allranks.report.terminal import shows_colour
from allranks.report.topview import TopSnapshot, top_lines
from allranks.runs.directory import RunCondition, RunDirectory
from allranks.runs.documents import ORPHANED, OVER, Document
from allranks.runs.regular import read_end, size_of

from .chosen_run import find_run

KEYS_AT_END = "q"
FOOTER = "q ends this view, the run goes on"
INTERVAL = 1.0  # seconds between two looks at the run
TICK = 0.25  # seconds between two looks at the window's size
PRINTED_LINES = 150  # where standard output is not a terminal: a hundred nodes whole, of more the worst
PRINTED_WIDTH = 160
EVENTS_READ = 1 << 20  # bytes of events.jsonl that the first look reads
EVENTS_KEPT = 200
WARNINGS_KEPT = 8
METRICS_READ = 16 << 10  # bytes of the end of a metrics file


class RunWatch:
    """A run that is looked at. `events` are the newest, `warnings` those of this attempt, each sentence once."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.events: deque[Stamped[Fact]] = deque(maxlen=EVENTS_KEPT)
        self._warnings: dict[str, None] = {}
        self._offset = max(0, size_of(run.path / "events.jsonl") - EVENTS_READ)
        self._metrics = run.log_path(0, "", METRICS, 0, 0)
        self._metrics_size = 0
        self.loss: float | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The newest warnings, the newest last."""
        return tuple(self._warnings)

    def look(self) -> RunCondition:
        """Read what is new, and return the run's state with its documents."""
        condition = self.run.condition()
        fresh, self._offset = self.run.read_facts(self._offset, all_roles=True)
        for event in fresh:
            self._note(event)
        self._read_loss()
        return condition

    def _note(self, stamped: Stamped[Fact]) -> None:
        self.events.append(stamped)
        fact = stamped.fact
        if isinstance(fact, AttemptStart):
            self._warnings.clear()
        if isinstance(fact, Finding) and fact.status == "warn":
            self._warnings.pop(fact.message, None)
            self._warnings[fact.message] = None
            while len(self._warnings) > WARNINGS_KEPT:
                del self._warnings[next(iter(self._warnings))]

    def _read_loss(self) -> None:
        size = size_of(self._metrics)
        if size == self._metrics_size:
            return
        self._metrics_size = size
        lines = read_end(self._metrics, METRICS_READ).split("\n")
        if len(lines) > 1:  # the last is not whole
            with contextlib.suppress(DecodeError):
                self.loss = loss_of(read_metrics(lines[-2]))


def loss_of(row: Document) -> float | None:
    """Return the loss of a row of metrics: `loss`, else the first name that ends so.

    >>> loss_of({"step": 1, "train/loss": 2.5}), loss_of({"loss": 3}), loss_of({"loss": "nan"}), loss_of({"step": 1})
    (2.5, 3.0, None, None)
    """
    names = ["loss", *(name for name in row if name.lower().endswith("loss"))]
    value: Json = next((row[name] for name in names if name in row), None)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def command(run: str | None, on: str | None, once: bool, runs_dir: str | None) -> int:
    """Show a run: once, or in the whole terminal until a key ends it."""
    directory = find_run(run, runs_dir, on)
    settle(directory, time.time())
    watch = RunWatch(directory)
    if once or not is_interactive():
        shown = snapshot(watch, time.time())
        lines = top_lines(shown, watch.events, PRINTED_WIDTH, PRINTED_LINES, shows_colour(sys.stdout), footer="")
        print("\n".join(lines))
        return DONE
    with FullScreen(sys.stdout, sys.stdin) as screen:
        _draw_until_left(watch, screen)
    return DONE


def _draw_until_left(watch: RunWatch, screen: FullScreen) -> None:
    next_look = 0.0
    size = (0, 0)
    shown: TopSnapshot | None = None
    try:
        while True:
            now = time.monotonic()
            is_due = now >= next_look
            if is_due:
                shown = snapshot(watch, time.time())
                next_look = time.monotonic() + INTERVAL
            if (is_due or screen.size != size) and shown is not None:
                size = screen.size
                screen.draw(top_lines(shown, watch.events, *size, shows_colour(sys.stdout), FOOTER))
            if KEYS_AT_END in screen.key(TICK).lower():
                return
    except KeyboardInterrupt:
        return


def snapshot(watch: RunWatch, now: float) -> TopSnapshot:
    """Look at a run. `now`: unix seconds."""
    condition = watch.look()
    report = condition.report(watch.run, now)
    started = watch.run.started
    elapsed = max(0.0, now - started) if started else None
    if condition.result is not None:
        elapsed = condition.result.timing.total
    if condition.state in (*OVER, ORPHANED):
        report = replace(report, nodes=tuple(map(without_clock, report.nodes)))
    return TopSnapshot(**vars(report), elapsed=elapsed, loss=watch.loss, warnings=watch.warnings)
