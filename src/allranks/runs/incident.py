"""The Incident of a run's last attempt, from its files alone: events, error files, the ends of logs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from allranks.diagnose.incident import ExitRecord, Incident
from allranks.diagnose.recorded import fold, last_attempt
from allranks.node.frames import RANK_LOG

from .directory import RunDirectory

TAIL = 16 << 10  # bytes at the end of a failed rank's log


def read_incident(run: RunDirectory) -> Incident | None:
    """None where the events do not tell of an attempt: an empty or foreign directory, a disk that was full."""
    document = run.read_document("run.json") or {}
    entries = document.get("nodes") or ()
    nodes = {str(n["name"]): int(n["index"]) for n in entries}
    ranked = {int(n.get("node_rank", n["index"])): str(n["name"]) for n in entries if n.get("node_rank", 0) is not None}
    launcher = str((document.get("spec") or {}).get("launcher") or "direct")
    events, _ = run.read_events()
    if not any(e.get("event") == "attempt-start" for e in events):
        return None
    try:
        incident = fold(events, last_attempt(events), [ranked[k] for k in sorted(ranked)], launcher)
    except (KeyError, TypeError, ValueError):  # written by another version, or damaged
        return None
    return replace(incident, exits=tuple(_complete(run, e, nodes) for e in incident.exits))


def _complete(run: RunDirectory, end: ExitRecord, nodes: Mapping[str, int]) -> ExitRecord:
    """With its error file, and where it failed the end of its log."""
    tail = log_tail(run, nodes.get(end.node, 0), end.node, end.rank, end.attempt) if end.code != 0 else ""
    error = RunDirectory(_errors(run, end.attempt)).read_document(f"rank_{end.rank:03d}.json")
    return replace(end, error=error, tail=tail)


def log_tail(run: RunDirectory, index: int, node: str, rank: int, attempt: int) -> str:
    """The end of a rank's log; empty where there is none."""
    path = run.log_path(index, node, RANK_LOG, rank, attempt)
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            return file.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""


def save_error(run: RunDirectory, attempt: int, rank: int, error: Mapping[str, Any] | None) -> None:
    """Keeps the error file of a rank as evidence; on a full disk it is left out."""
    if not error:
        return
    folder = _errors(run, attempt)
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    RunDirectory(folder).write_document(f"rank_{rank:03d}.json", dict(error))


def _errors(run: RunDirectory, attempt: int) -> Path:
    return run.path / "evidence" / "errors" / (f"attempt_{attempt}" if attempt else "")
