"""The verdict on a run directory, judged anew from its files; and what the rules for logs say of its logs.

A newer allranks so judges an older run by its own rules. The kept verdict stands where the files tell less than the
run knew: events that a full disk has swallowed, collective tests (their rows were judged).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from allranks.diagnose.logs.evidence import Evidence
from allranks.diagnose.logs.judge import judge_logs
from allranks.diagnose.verdict import judge
from allranks.findings import SURE, Finding, Verdict

from .directory import RunDirectory
from .incident import read_incident
from .loose import Progress, find_logs, read_logs

RUNNERS_UP = 3
WITHOUT_FAILURE = {"done": "{} ended well: it has no verdict", "stopped": "{} was stopped: it has no verdict"}
AT_ONCE = 256 << 20  # bytes of logs that the end of a run reads for a verdict that is not sure


Reader = Callable[[Sequence[Path], Progress | None], Evidence]


def judge_run(run: RunDirectory, progress: Progress | None = None, read: Reader = read_logs) -> dict[str, Any]:
    """The verdict on the last attempt, completed from all of its logs.

    A run that is not over is judged from its logs too: then `unknown` says so. One that ended well, or was stopped,
    has no cause: `cause` is null, `status` is ok.
    """
    verdict = _from_files(run)
    words = WITHOUT_FAILURE.get(run.state()) if verdict is None else None
    if words is not None:
        finding = Finding("unknown", "ok", words.format(run.name))
        return {**Verdict(finding, "unknown", 1.0).to_json(), "cause": None}
    attempt = verdict.attempt if verdict is not None else 0
    logs = log_files(run, attempt)
    found = judge_logs(read(logs, progress)) if logs else None
    if verdict is None:
        return _without(run, found, attempt).to_json()
    return (_completed(verdict, found) if found is not None else verdict).to_json()


def complete(verdict: Verdict, run: RunDirectory) -> Verdict:
    """Complete a verdict that is not sure from the logs at the end of a run, where they are not too large."""
    logs = log_files(run, verdict.attempt)
    if not logs or sum(path.stat().st_size for path in logs) > AT_ONCE:
        return verdict
    return _completed(verdict, judge_logs(read_logs(logs)))


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


def _from_files(run: RunDirectory) -> Verdict | None:
    """Anew, unless only the run itself could know: then as it was kept."""
    kept = _kept(run)
    incident = None if _was_test(run) else read_incident(run)
    anew = judge(incident) if incident is not None else None
    if anew is None or (kept is not None and anew.confidence < SURE <= kept.confidence):
        return kept
    return replace(anew, decision=kept.decision) if kept is not None else anew


def _kept(run: RunDirectory) -> Verdict | None:
    """verdict.json, else the verdict in result.json."""
    document = run.read_document("verdict.json")
    if document is None:
        document = (run.read_document("result.json") or {}).get("verdict")
    try:
        return Verdict.from_json(document) if isinstance(document, dict) else None
    except (KeyError, TypeError, ValueError):
        return None


def _was_test(run: RunDirectory) -> bool:
    """The last attempt ran the collective tests, not a program."""
    spec = (run.read_document("run.json") or {}).get("spec")
    asked = isinstance(spec, dict) and bool(spec.get("test"))
    return asked and not any(e.get("event") == "test-passed" for e in run.read_events()[0])


def _completed(verdict: Verdict, found: Verdict) -> Verdict:
    """The surer of both first; `verdict` also where the logs do not know."""
    stands = verdict.confidence >= SURE or found.cause == "unknown"
    first, second = (verdict, found) if stands else (replace(found, attempt=verdict.attempt), verdict)
    evidence = (first.finding.evidence or second.finding.evidence)[:3]
    victims = first.victims or second.victims
    return replace(
        first, finding=replace(first.finding, evidence=evidence), victims=victims,
        runners_up=_others(first, second),
    )  # fmt: skip


def _without(run: RunDirectory, found: Verdict | None, attempt: int) -> Verdict:
    """Nothing is known to have failed: the run goes on, or its controller was lost."""
    if found is not None and found.cause != "unknown":
        return replace(found, attempt=attempt)
    message = f"{run.name} is {run.state()}" + (f": {found.finding.message}" if found else ", and has no logs")
    base = found or Verdict(Finding("unknown", "unknown", message), "unknown", 0.1)
    finding = replace(base.finding, id="unknown", status="unknown", message=message)
    return replace(base, finding=finding, cause="unknown", confidence=0.1, attempt=attempt)


def _others(first: Verdict, second: Verdict) -> tuple[Finding, ...]:
    """Runners-up of both, one a cause."""
    best: dict[str, Finding] = {}
    for other in _in_order(first, second):
        if other.id not in (first.cause, "unknown"):
            best.setdefault(other.id, other)
    return tuple(best.values())[:RUNNERS_UP]


def _in_order(first: Verdict, second: Verdict) -> Iterable[Finding]:
    return (*first.runners_up, replace(second.finding, id=second.cause), *second.runners_up)
