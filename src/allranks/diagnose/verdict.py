"""Incident → Verdict: every rule answers, one candidate explains the rest (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from allranks.findings import Finding, Verdict

from .incident import Incident
from .rules import RULES, Candidate, Strength
from .rules.failures import CLOCK_ERROR
from .rules.words import name_ranks

CLEARLY = 0.1  # seconds: more than the clocks' error
RUNNERS_UP = 3
FAR = float("inf")


def judge(incident: Incident) -> Verdict | None:
    """The one verdict on an attempt; None where nothing failed, or where the user stopped it before anything did."""
    answers = (rule(incident) for rule in RULES.values())
    candidates = [c for c in answers if c is not None and _counts(incident, c)]
    if not candidates:
        return None if incident.stop_reason or not any(e.failed for e in incident.exits) else _unexplained(incident)
    chosen = choose(candidates)
    found = chosen.finding()
    return Verdict(
        finding=replace(found, where=incident.complete(found.where)),
        cause=chosen.cause, confidence=round(chosen.confidence, 2), victims=_victims(incident, chosen),
        attempt=incident.attempt, detected_after_s=_delay(incident, chosen), runners_up=_runners_up(candidates, chosen),
    )  # fmt: skip


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The order of supersession stands in `rules/__init__.py`."""
    strongest = max(c.strength for c in candidates)
    best = _earliest([c for c in candidates if c.strength is strongest])
    if strongest is Strength.ROOT and best.t is not None:
        limit = best.t - CLEARLY
        before = [c for c in candidates if c.strength is Strength.WEAK and c.t is not None and c.t < limit]
        return _earliest(before) if before else best
    return best


def _earliest(candidates: Sequence[Candidate]) -> Candidate:
    first = min(_time(c) for c in candidates)
    near = [c for c in candidates if _time(c) <= first + CLOCK_ERROR]
    return max(near, key=lambda c: (c.confidence, -_time(c)))


def _time(candidate: Candidate) -> float:
    return FAR if candidate.t is None else candidate.t


def _counts(incident: Incident, candidate: Candidate) -> bool:
    """A user's stop makes ranks lose each other: then only what explains itself counts."""
    if incident.stop_reason is None or candidate.strength >= Strength.ROOT:
        return True
    return incident.detected_t is not None and candidate.strength is Strength.FINDING


def _victims(incident: Incident, chosen: Candidate) -> tuple[int, ...]:
    """The other ranks that failed or were ended, with those nobody could report: their node or its guard is gone."""
    gone = {n.node for n in incident.lost} | {f.node for f in incident.faults if f.id == "guard-death"}
    silent = {r for node in gone for r in incident.ranks_by_node.get(node, ())}
    ranks = {e.rank for e in incident.exits if e.failed} | (silent - {e.rank for e in incident.exits})
    return tuple(sorted(ranks - chosen.culprits))


def _delay(incident: Incident, chosen: Candidate) -> float | None:
    if incident.detected_t is None or chosen.t is None:
        return None
    return round(max(0.0, incident.detected_t - chosen.t), 3)


def _runners_up(candidates: Sequence[Candidate], chosen: Candidate) -> tuple[Finding, ...]:
    """What else failed; complaints about a peer only where nothing better was found."""
    rest = [c for c in candidates if c is not chosen and c.strength is not Strength.SYMPTOM]
    rest.sort(key=lambda c: (-c.strength, _time(c)))
    return (*chosen.others, *(c.finding() for c in rest))[:RUNNERS_UP]


def _unexplained(incident: Incident) -> Verdict:
    """Ranks failed, and all of them only after allranks had begun to end them."""
    failed = [e for e in incident.exits if e.failed]
    ranks = tuple(sorted(e.rank for e in failed))
    message = f"allranks ended {name_ranks(incident, ranks)}, and no evidence says what had failed before"
    finding = Finding("unknown", "fail", message, "keep the run directory and read events.jsonl from `ending` back")
    return Verdict(finding, "unknown", 0.2, ranks, incident.attempt)
