"""The verdict on a run directory: the one it keeps, and what the rules for logs say of its logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from allranks.diagnose.loose.evidence import Evidence
from allranks.diagnose.loose.judge import judge_logs

from .directory import RunDirectory
from .loose import Progress, find_logs, read_logs

SURE = 0.5  # a kept verdict that is as sure stands
RUNNERS_UP = 3


Reader = Callable[[Sequence[Path], Progress | None], Evidence]


def judge_run(run: RunDirectory, progress: Progress | None = None, read: Reader = read_logs) -> dict[str, Any]:
    """The kept verdict, completed from the logs; the logs' own where none is kept or it does not know.

    A run that is not over, or ended well, is judged from its logs too: then `unknown` says so.
    """
    kept = _kept(run)
    attempt = int((kept or {}).get("attempt") or 0)
    logs = log_files(run, attempt)
    found = judge_logs(read(logs, progress)).to_json() if logs else None
    if kept is None:
        return _without(run, found, attempt)
    if found is None:
        return kept
    known = kept.get("cause") != "unknown" and float(kept.get("confidence") or 0) >= SURE
    first, second = (kept, found) if known or found["cause"] == "unknown" else ({**found, "attempt": attempt}, kept)
    return {
        **first,
        "evidence": (first.get("evidence") or second.get("evidence") or [])[:3],
        "runners_up": _others(first, second),
    }


def log_files(run: RunDirectory, attempt: int) -> list[Path]:
    """The logs of an attempt, and the kernel logs and messages kept as evidence."""
    folder = run.path / "logs" / (f"attempt_{attempt}" if attempt else "")
    found = find_logs([str(folder)]) if folder.is_dir() else []
    found = [
        p for p in found if attempt or not any(part.startswith("attempt_") for part in p.relative_to(folder).parts)
    ]
    evidence = run.path / "evidence"
    texts = [p for p in find_logs([str(evidence)]) if p.suffix in (".log", ".txt")] if evidence.is_dir() else []
    return found + [p for p in texts if not {"stacks", "ras"} & set(p.relative_to(evidence).parts)]


def _kept(run: RunDirectory) -> dict[str, Any] | None:
    """verdict.json, else the verdict in result.json."""
    document = run.read_document("verdict.json")
    if document is None:
        document = (run.read_document("result.json") or {}).get("verdict")
    return document if isinstance(document, dict) and "cause" in document else None


def _without(run: RunDirectory, found: dict[str, Any] | None, attempt: int) -> dict[str, Any]:
    """No verdict is kept: the run goes on, ended well, or its controller was lost."""
    state = run.state()
    note = {
        "done": f"{run.name} ended well: it has no verdict",
        "stopped": f"{run.name} was stopped: it has no verdict",
    }.get(state)
    if note is None and found is not None and found["cause"] != "unknown":
        return {**found, "attempt": attempt}
    message = note or (f"{run.name} is {state}" + (f": {found['message']}" if found else ", and has no logs"))
    base = found or {
        "evidence": [],
        "remedy": "",
        "where": {},
        "runners_up": [],
        "victims": [],
        "detected_after_s": None,
    }
    return {
        **base,
        "schema": 1,
        "id": "unknown",
        "status": "unknown",
        "cause": "unknown",
        "confidence": 0.1,
        "attempt": attempt,
        "message": message,
    }


def _others(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    """Runners-up of both, one a cause."""
    best: dict[str, dict[str, Any]] = {}
    for other in [*(first.get("runners_up") or []), second, *(second.get("runners_up") or [])]:
        cause = other.get("cause") or other.get("id")
        if cause not in (first.get("cause"), "unknown"):
            best.setdefault(
                str(cause),
                {k: other[k] for k in ("id", "status", "where", "message", "remedy", "evidence") if k in other},
            )
    return list(best.values())[:RUNNERS_UP]
