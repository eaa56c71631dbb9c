"""What a test found: the agreement of all ranks' verdicts, the line that is printed, the JSON line. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .hang import Hang, names

LATE = 1.0  # seconds after the median rank
SHOWN = 16  # ranks whose failure is kept
FAULTS = 3  # different errors on one line


class Result(NamedTuple):
    """One line of output."""

    test: str
    status: str  # pass, fail, skip, hang
    detail: str = ""
    seconds: float = 0.0
    reason: str = ""
    broken: bool = False  # the process group can't be trusted any more
    failures: list[dict[str, Any]] = []  # noqa: RUF012  (never changed)
    late: dict[str, Any] | None = None
    hang: Hang | None = None


def agree(test: str, verdicts: list[dict[str, Any]]) -> Result:
    """One result from every rank's verdict."""
    seconds = round(max(float(v["seconds"]) for v in verdicts), 4)
    of = {status: [r for r, v in enumerate(verdicts) if v["status"] == status] for status in ("fail", "error", "skip")}
    late = late_rank([float(v["arrived"]) for v in verdicts])
    detail = verdicts[0]["detail"]
    reasons = {rank: str(verdict["reason"]) for rank, verdict in enumerate(verdicts)}
    if of["error"]:
        failures = [{"rank": rank, "kind": "error", "reason": reasons[rank]} for rank in of["error"][:SHOWN]]
        return Result(test, "fail", detail, seconds, say_errors(of["error"], reasons), True, failures, late)
    if of["fail"]:
        failures = [verdicts[rank]["failure"] for rank in of["fail"]]
        blamed = next((failure for failure in failures if failure["source"] is not None), failures[0])
        reason = f"on {names(of['fail'])}: {say_failure(blamed)}"
        return Result(test, "fail", detail, seconds, reason, False, failures[:SHOWN], late)
    if len(of["skip"]) == len(verdicts):
        return Result(test, "skip", "", seconds, reasons[0], late=late)
    if of["skip"]:
        reason = f"on {names(of['skip'])}: {reasons[of['skip'][0]]}, unlike on the others"
        return Result(test, "fail", detail, seconds, reason, True, late=late)
    return Result(test, "pass", detail, seconds, late=late)


def say_errors(ranks: list[int], reasons: dict[int, str]) -> str:
    """Every different error with the ranks that had it: `on rank 1: …; on ranks 0 3: …`."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(reasons[rank], []).append(rank)
    parts = [f"on {names(who)}: {what}" for what, who in groups.items()]
    return "; ".join([*parts[:FAULTS], *([f"{len(parts) - FAULTS} more errors"] if len(parts) > FAULTS else [])])


def late_rank(arrived: list[float]) -> dict[str, Any] | None:
    """The rank that came to the first collective long after the others."""
    ordered = sorted(arrived)
    behind = ordered[-1] - ordered[(len(ordered) - 1) // 2]
    return {"rank": arrived.index(ordered[-1]), "seconds": round(behind, 3)} if behind > LATE else None


def say_failure(failure: dict[str, Any]) -> str:
    """`round 1 float32 element 0 of rank 2's block: expected 5, found 0`."""
    source = f" of rank {failure['source']}'s block" if failure["source"] is not None else ""
    if failure["note"]:
        source = f", {failure['note']}"
    place = f"round {failure['round']} {failure['kind']} element {failure['index']}{source}"
    return f"{place}: expected {failure['expected']}, found {failure['found']}"


def line(result: Result, ranks: int) -> str:
    """`PASS all_reduce            4 ranks  float32 int64   0.012 s`."""
    word = {"pass": "PASS", "skip": "SKIP"}.get(result.status, "FAIL")
    head = f"{word} {result.test:<22} {ranks:>4} ranks"
    late = f"   rank {result.late['rank']} came {result.late['seconds']:.1f} s late" if result.late else ""
    if result.status == "pass":
        return f"{head}  {result.seconds:8.3f} s  {result.detail}{late}"
    return f"{head}  {result.reason}{late}"


def as_json(result: Result, ranks: int) -> str:
    """The row of a test."""
    content = {"schema": 1, "kind": "collective", "ranks": ranks, **result._asdict()}
    del content["broken"]
    content["hang"] = result.hang._asdict() if result.hang else None
    return json.dumps(content)


def of_hang(hang: Hang) -> Result:
    """A test that did not end."""
    return Result(hang.test, "hang", reason=hang.text, broken=True, hang=hang)
