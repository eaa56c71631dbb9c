"""Evidence of logs → Verdict: every rule answers, one candidate explains the rest (pure).

Supersession: strength first (rules/candidate.py); then what explains another (`Cause.explains`); then the surest; among
those about as sure the earliest. Below ENOUGH nothing is claimed: the answer is `unknown`, with what to collect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from allranks.findings import SURE, Finding, Verdict, Where

from ..causes import CAUSES, UNKNOWN
from ..rules.candidate import Candidate, Strength
from ..rules.failures import KILL
from ..signatures import BY_ID
from .evidence import Evidence, cut, shown, who
from .rules import RULES
from .rules.exit_code import after_abort, ends

ENOUGH = 0.38
ABOUT = 0.12  # confidences that are about the same
RUNNERS_UP = 3


def judge_logs(evidence: Evidence) -> Verdict:
    """The verdict; `unknown` where nothing is sure enough."""
    candidates = [c for rule in RULES.values() for c in rule(evidence)]
    candidates = [_after_abort(evidence, c) for c in candidates]
    if not candidates:
        return nothing(evidence)
    chosen = _located(evidence, choose(candidates))
    others = _runners_up(candidates, chosen)
    if chosen.confidence < ENOUGH and chosen.cause != "unknown":
        others = (chosen.finding(), *others)[:RUNNERS_UP]
        chosen = replace(
            chosen,
            cause="unknown",
            remedy="",
            message=f"nothing here is sure enough; at most: {chosen.message}",
            where=Where(),
        )
    return Verdict(
        chosen.finding(), chosen.cause, round(chosen.confidence, 2), _victims(evidence, chosen), runners_up=others
    )


def _located(evidence: Evidence, chosen: Candidate) -> Candidate:
    """Where no line names the rank, the launcher's report may: the one that failed (or was killed for memory)."""
    where = chosen.where
    memory = chosen.cause in ("host-out-of-memory", "k8s-out-of-memory")
    known = where.rank is not None or chosen.culprits or chosen.strength is Strength.SYMPTOM
    if known or chosen.rule not in ("exception", *BY_ID):
        return chosen
    failed = [e for e in ends(evidence) if (e.signal == KILL if memory else e.signal is None and e.code != 0)]
    ranks, nodes = {e.rank for e in failed} - {None}, {e.node for e in failed} - {""}
    if where.node is None and len(nodes) == 1 and not where.nodes:
        where = replace(where, node=nodes.pop())
    if len(ranks) != 1 or evidence.ranks_spoken:
        return replace(chosen, where=where)
    rank = ranks.pop()
    where = replace(where, rank=rank)
    name = who(where)
    raised = chosen.message.replace("the program raised", f"{name} raised", 1)
    message = raised if raised.startswith(name) else f"{name}: {raised}"
    return replace(chosen, where=where, message=message, culprits=frozenset({rank} if rank is not None else ()))


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The strongest that nothing else explains, the surest, the earliest."""
    strongest = max(c.strength for c in candidates)
    mine = [c for c in candidates if c.strength is strongest]
    explained = {e for c in mine for e in CAUSES[c.cause].explains if c.confidence >= SURE}
    mine = [c for c in mine if c.cause not in explained] or mine
    limit = max(c.confidence for c in mine) - ABOUT
    return min((c for c in mine if c.confidence >= limit), key=lambda c: (c.t or 0.0, -c.confidence))


def _after_abort(evidence: Evidence, candidate: Candidate) -> Candidate:
    """A crash while a rank aborts is the end of the abort."""
    if candidate.cause != "segfault-native" or candidate.strength is not Strength.WEAK:
        return candidate
    crash = next((s for s in evidence.sightings if s.order == candidate.t), None)
    if crash is None or not after_abort(evidence, crash):
        return candidate
    return replace(candidate, strength=Strength.SYMPTOM, confidence=0.3)


def _runners_up(candidates: Sequence[Candidate], chosen: Candidate) -> tuple[Finding, ...]:
    """What else was seen, one a cause."""
    rest = sorted(
        (c for c in candidates if c.cause != chosen.cause), key=lambda c: (-c.strength, -c.confidence, c.t or 0.0)
    )
    best: dict[str, Candidate] = {}
    for candidate in rest:
        best.setdefault(candidate.cause, candidate)
    return tuple(c.finding() for c in best.values() if c.cause != "unknown")[:RUNNERS_UP]


def _victims(evidence: Evidence, chosen: Candidate) -> tuple[int, ...]:
    """Ranks that complain or were ended, but for the culprits; none where all ranks failed alike."""
    if not chosen.culprits and chosen.strength is not Strength.SYMPTOM:
        return ()
    complaints = evidence.seen("remote-error", "remote-closed", "peer-closed", "store-lost", "watchdog", "gloo-waited")
    complaining = {s.rank for s in complaints if s.rank is not None}
    ended = {e.rank for e in ends(evidence) if e.rank is not None}
    return tuple(sorted((complaining | ended) - chosen.culprits))


def nothing(evidence: Evidence) -> Verdict:
    """No row and no rule has seen anything: the last lines, and what to collect."""
    last = [line for line in evidence.tail if line.text.strip()][-3:]
    said = f"; the last line is: {cut(last[-1].text, 160)}" if last else ": they are empty"
    finding = Finding(
        "unknown",
        "unknown",
        f"nothing in these logs says why{said}",
        UNKNOWN.remedy(),
        Where(),
        tuple(shown(k) for k in last),
    )
    return Verdict(finding, "unknown", 0.1)
