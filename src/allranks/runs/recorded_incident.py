"""The Incident of a run's last attempt, from its files alone: events, error files, the ends of logs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from allranks.cluster.nodes import JOINED
from allranks.diagnose.incident import ExitRecord, Incident
from allranks.diagnose.recorded import fold, last_attempt
from allranks.diagnose.rules.agents import of_rank
from allranks.protocol.frames import METRICS, RANK_LOG
from allranks.protocol.jsontext import DecodeError, read_metrics
from allranks.protocol.run_facts import AttemptStart, Fact, Stamped, of_kind

from .directory import RunDirectory
from .documents import Document, RunDocument
from .errorfiles import read_error
from .regular import open_regular, read_end

TAIL = 16 << 10  # bytes at either end of a failed rank's log


def read_incident(run: RunDirectory) -> Incident | None:
    """None where the events do not tell of an attempt: an empty or foreign directory, a disk that was full."""
    facts, _ = run.read_facts()
    if not any(of_kind(facts, AttemptStart)):
        return None
    try:
        return _read(run, run.read_run(), facts)
    except (AttributeError, KeyError, TypeError, ValueError):  # written by another version, or damaged
        return None


def _read(run: RunDirectory, document: RunDocument, facts: list[Stamped[Fact]]) -> Incident:
    nodes = {node.name: node.index or 0 for node in document.nodes}
    launcher = str(document.spec.get("launcher") or "direct")
    lease = document.spec.get("lease")
    incident = fold(facts, last_attempt(facts), [node.name for node in document.gang], launcher)
    return replace(
        incident,
        command=document.command,
        lease=float(lease) if isinstance(lease, (int, float)) else 0.0,
        is_slurm=document.spec.get("slurm") is True,
        is_joined=document.source == JOINED,
        withheld=document.withheld,
        local_nodes=frozenset(node.name for node in document.nodes if node.is_local),
        exits=tuple(_complete(run, end, nodes) for end in incident.exits),
    )


def _complete(run: RunDirectory, end: ExitRecord, nodes: Mapping[str, int]) -> ExitRecord:
    """With its error file, and where it failed the ends of its log and metrics."""
    error = read_error(run, end.attempt, end.rank)
    if end.code == 0:
        return replace(end, error=error)
    head, tail, metrics = read_log(run, nodes.get(end.node, 0), end.node, end)
    return replace(end, error=error, head=head, tail=tail, metrics=metrics)


class RankEnd(Protocol):
    """An exit, as an event or as a record."""

    @property
    def rank(self) -> int:
        """Its rank."""

    @property
    def attempt(self) -> int:
        """Its attempt."""


def read_log(run: RunDirectory, index: int, node: str, end: RankEnd) -> tuple[str, str, Document | None]:
    """Beginning and end of a rank's log, and the last row of its metrics."""
    log = run.log_path(index, node, RANK_LOG, end.rank, end.attempt)
    metrics = _last_row(_read_end(run.log_path(index, node, METRICS, end.rank, end.attempt)))
    if log.exists():
        return _read_end(log, first=True), _read_end(log), metrics
    logs = sorted(log.parent.glob("rank_*.log"))  # another launcher's: one log for all ranks of the node
    if not logs:
        return "", "", metrics
    return _read_end(logs[0], first=True), of_rank(_read_end(logs[0]), end.rank), metrics


def _read_end(path: Path, first: bool = False) -> str:
    """Read the last bytes of a file, or the first; empty where there is none."""
    try:
        if not first:
            return read_end(path, TAIL).decode("utf-8", "replace")
        with open_regular(path) as file:
            return file.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""


def _last_row(text: str) -> Document | None:
    """Return the last line that is a JSON object."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(DecodeError):
            return read_metrics(line)
    return None
