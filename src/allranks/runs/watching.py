"""Reads a run directory again and again: what is new since the last look, and no more than that (IO)."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections import deque
from pathlib import Path

from allranks.findings import Finding
from allranks.protocol.frames import RANK_LOG
from allranks.protocol.jsontext import DecodeError, Json, read_metrics
from allranks.protocol.run_facts import AttemptStart, Fact, Stamped

from .directory import RunCondition, RunDirectory
from .documents import Document, StatusDocument
from .regular import read_end, size_of

EVENTS_READ = 1 << 20  # bytes of events.jsonl that the first look reads
EVENTS_KEPT = 200
WARNINGS_KEPT = 8
METRICS_READ = 16 << 10  # bytes of the end of a metrics file, and of a log
PRINTED_LOSS = re.compile(
    rb"(?i)(?<![a-z_-])(?:(?:lm|train|training)[ _/-])?loss['\"]?[ \t]{0,4}[:=]?[ \t]{0,4}['\"]?"
    rb"(-?\d{1,12}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?)(?![\d.%])"
)
MOST_RANKS_LOOKED_AT = 4096  # file names in which the lowest rank with metrics is looked for


class RunWatch:
    """A run that is looked at. `events` are the newest, `warnings` those of this attempt, each sentence once."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.events: deque[Stamped[Fact]] = deque(maxlen=EVENTS_KEPT)
        self._warnings: dict[str, None] = {}
        self._offset = max(0, size_of(run.path / "events.jsonl") - EVENTS_READ)
        self._metrics: Path | None = None
        self._metrics_size = -1
        self._log_size = -1
        self.loss: float | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The newest warnings, the newest last."""
        return tuple(self._warnings)[-WARNINGS_KEPT:]

    def look(self) -> RunCondition:
        """Read what is new, and return the run's state with its documents."""
        condition = self.run.condition()
        fresh, self._offset = self.run.read_facts(self._offset, all_roles=True)
        for event in fresh:
            self._note(event)
        self._read_loss()
        if self._metrics is None:
            self._read_printed_loss(condition.status)
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
        """Read the last row of the lowest rank with a metrics file, where the file has grown."""
        if self._metrics is None or not self._metrics.exists():
            self._metrics = _lowest_metrics(self.run.path / "outputs")
        if self._metrics is None:
            return
        size = size_of(self._metrics)
        if size == self._metrics_size:
            return
        self._metrics_size = size
        with contextlib.suppress(OSError, DecodeError):
            lines = read_end(self._metrics, METRICS_READ).split(b"\n")
            if len(lines) > 1:  # the last is not whole
                self.loss = loss_of(read_metrics(lines[-2]))

    def _read_printed_loss(self, status: StatusDocument) -> None:
        """Read the loss that the lowest rank has printed last, where its log has grown."""
        node = next((node for node in status.nodes if node.ranks and node.index is not None), None)
        if node is None or node.index is None:
            return
        log = self.run.log_path(node.index, node.name, RANK_LOG, node.ranks[0].rank, status.attempt)
        size = size_of(log)
        if size == self._log_size:
            return
        self._log_size = size
        with contextlib.suppress(OSError):
            self.loss = printed_loss(read_end(log, METRICS_READ), self.loss)


def printed_loss(text: bytes, before: float | None = None) -> float | None:
    """Return the last loss of training that a text shows; `before` where it shows none.

    >>> printed_loss(b"step 5/1200 loss 0.25 lr 1e-4"), printed_loss(b"{'loss': 2.5, 'epoch': 1}"), printed_loss(b"")
    (0.25, 2.5, None)
    >>> printed_loss(b"lm loss: 6.9E+00 | eval_loss: 3")
    6.9
    """
    printed = PRINTED_LOSS.findall(text)
    if not printed:
        return before
    return float(printed[-1])


def _lowest_metrics(folder: Path) -> Path | None:
    first = folder / "rank_00_metrics.jsonl"
    if first.exists():
        return first
    names: list[tuple[int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= MOST_RANKS_LOOKED_AT:
                break
            rank = entry.name.removeprefix("rank_").removesuffix("_metrics.jsonl")
            if entry.name == f"rank_{rank}_metrics.jsonl" and rank.isascii() and rank.isdecimal() and len(rank) < 10:
                names.append((int(rank), entry.name))
    if not names:
        return None
    return folder / min(names)[1]


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
