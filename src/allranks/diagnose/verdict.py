"""Observations → one verdict: every rule answers, one ladder chooses (pure).

The ladder, from its top:
 1. What was observed of processes, nodes and checks comes before what logs say, unless it is not sure (findings.SURE)
    and the logs name a cause (`FIGURES`). So does what a run once concluded, where its files tell less of it.
 2. Strength (candidate.py): what explains itself beats a finding of a check, that beats what is unexplained, that
    beats a complaint about a peer. So a peer's out-of-memory explains a reset connection whatever the clocks say.
 3. An unexplained end that came clearly (CLEARLY) before a root is not its consequence: it wins.
 4. A cause that another one explains (`Cause.explains`) loses to it, unless it came clearly before.
 5. The earliest by the clock; within the clocks' error, and of what has no clock, the surest.
 6. Of lines that are about as sure (ABOUT) the earliest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from allranks.findings import SURE, EvidenceName, Finding, Verdict, Where, typed_here
from allranks.text import group

from .candidate import EVIDENCE, Candidate, Strength
from .causes import CAUSES, UNKNOWN, UNSURE, FixReader, fields_of
from .incident import Incident
from .logs.ends import ends
from .logs.sightings import Evidence, quoted
from .rules import FAILURE_RULES, LOG_RULES, RULES
from .rules.failures import CLOCK_ERROR, failures
from .rules.log_ends import ENDED, locate
from .signatures import Sign
from .values import find_value
from .words import DECIDE_AT_START, name_ranks, short
from .worlds import SCHEDULERS, read_worlds

CLEARLY = 0.1  # seconds: more than the clocks' error
UNDECIDED = 0.45  # the most that an `unknown` has
ABOUT = 0.12  # confidences of lines that are about the same
RUNNERS_UP = 3
IF_HEALTHY = (
    "A job that goes on, or has ended well, needs nothing. If it failed, give `allranks diagnose` the logs of all "
    "ranks from their beginning. If it stands still, look with `py-spy dump --pid PID` at its ranks, and start it with "
    "NCCL_DEBUG=INFO"
)
COMPLAINTS = (
    *("remote-error", "remote-closed", "peer-closed", "store-lost", "watchdog", "gloo-waited", "barrier-reached"),
)
NEVER = float("inf")
# A last line that states a good end. Only over such a one is it said that nothing tells of a failure: what a log does
# not say, an excerpt may have left out.
_ENDED_WELL = re.compile(
    r"(?i)\bexit(?:ed)?(?: with)?(?: (?:code|status))?:? ?0\b|^\W*(?:finished|done|completed|success)\b|"
    r"\b(?:training|job|run|all (?:ranks|epochs|steps))\b.{0,40}\b(?:finished|completed?|done|succeeded)\b"
)
# A last line of a program at work: what to look at first is whether it still moves.
_WORKS = re.compile(r"(?i)\b(?:step|epoch|iter(?:ation)?|batch|loss|lr|samples)\b|it/s|s/it|\d%\|")


def judge(incident: Incident, logs: Evidence | None = None, concluded: Verdict | None = None) -> Verdict | None:
    """Give the one verdict on an attempt; None where nothing failed, or the user stopped it before anything did.

    `logs` is what its logs tell, where they were read; `concluded` what the run itself said at its end.
    """
    verdict = _on_run(incident)
    if concluded is not None:
        unsure = verdict is None or verdict.confidence < SURE <= concluded.confidence
        verdict = concluded if verdict is None or unsure else verdict._replace(decision=concluded.decision)
    if verdict is None:
        return None
    if logs is not None:
        verdict = _complete(verdict, judge_logs(logs))
        verdict = verdict._replace(finding=verdict.finding._replace(where=incident.complete(verdict.finding.where)))
    verdict = verdict._replace(finding=_with_warnings(verdict, incident))
    read = [typed_here(f, incident.logins) for f in (verdict.finding, *verdict.runners_up)]
    return verdict._replace(finding=read[0], runners_up=tuple(read[1:]))


def _with_warnings(verdict: Verdict, incident: Incident) -> Finding:
    """Add to the evidence what lastingly ails a node at fault: it may have failed of it."""
    finding = verdict.finding
    nodes = {finding.where.node, *finding.where.nodes, *map(incident.node_of, verdict.culprits)}
    warned = [f.message for f in incident.findings if f.lasts and f.where.node in nodes]
    new = [message for message in warned if message not in (finding.message, *finding.evidence)]
    return finding._replace(evidence=(*finding.evidence[: max(1, EVIDENCE - len(new))], *new)[:EVIDENCE])


def judge_logs(logs: Evidence) -> Verdict:
    """Give the verdict on logs alone; `unknown` where nothing is sure enough."""
    candidates = [c for _, rule in LOG_RULES.values() for c in rule(logs)]
    if not candidates:
        return _nothing(logs)
    candidates = [replace(c, worlds=logs.worlds) for c in candidates]
    chosen = _valued(locate(logs, choose(candidates)), logs.value_of)
    candidates = [_valued(c, logs.value_of) for c in candidates]
    evidence_kind = evidence_name(chosen.strength, chosen.confidence)
    sureness = FIGURES[evidence_kind]
    chosen, runners_up = _answer(candidates, chosen, sureness)
    if chosen.cause == UNKNOWN.id:
        sureness = min(sureness, chosen.confidence, UNDECIDED)
    return Verdict(
        chosen.finding(),
        chosen.cause,
        round(sureness, 2),
        _victims_in_logs(logs, chosen),
        tuple(sorted(chosen.culprits)),
        runners_up=runners_up,
        evidence_kind=evidence_kind,
    )


def _on_run(incident: Incident) -> Verdict | None:
    answers = [rule(incident) for _, rule in RULES.values()]
    failed_ranks = failures(incident)
    answers += [rule(incident, failed_ranks) for _, rule in FAILURE_RULES.values()]
    candidates = [c for c in answers if c is not None and _counts(incident, c)]
    if not candidates:
        failed = any(e.failed for e in incident.exits)
        if failed and not incident.stop_reason:
            return _unexplained(incident)
        return None
    texts = []  # what ranks said last
    for end in incident.exits:
        texts += [end.tail, *(link.text for link in (end.raised.links if end.raised is not None else ()))]
    worlds = read_worlds(texts)
    if incident.is_joined:
        worlds |= {SCHEDULERS[name] for name in incident.schedulers.values() if name in SCHEDULERS}
    reader = _reader(incident)
    candidates = [replace(c, worlds=worlds, reader=reader) for c in candidates]
    candidates = [_valued(c, partial(_value, incident, c, texts)) for c in candidates]
    chosen = choose(candidates)
    victims = _victims(incident, chosen)
    chosen, runners_up = _answer(candidates, chosen, chosen.confidence)
    finding = chosen.finding()
    delay = None
    if incident.detected_t is not None and chosen.t is not None:
        delay = round(max(0.0, incident.detected_t - chosen.t), 3)
    return Verdict(
        finding=finding._replace(where=incident.complete(finding.where)),
        cause=chosen.cause,
        confidence=round(chosen.confidence, 2),
        victims=victims,
        culprits=tuple(sorted(chosen.culprits)),
        attempt=incident.attempt,
        detected_after_s=delay,
        runners_up=runners_up,
        evidence_kind="observed",
    )


def _answer(
    candidates: Sequence[Candidate], chosen: Candidate, sureness: float
) -> tuple[Candidate, tuple[Finding, ...]]:
    """Give the answer with its runners-up: what is not sure is the first of them."""
    runners_up = _runners_up(candidates, chosen)
    if sureness >= SURE or chosen.cause == UNKNOWN.id:
        return chosen, runners_up
    return _not_sure(chosen), (chosen.finding(), *runners_up)[:RUNNERS_UP]


def _not_sure(chosen: Candidate) -> Candidate:
    """Make an answer of less than 50 % `unknown`, of a run as of logs: what is most likely, and what decides it."""
    message = f"{UNSURE}{chosen.cause}: {chosen.message}"
    if chosen.remedy == DECIDE_AT_START:
        decides = f"{DECIDE_AT_START}. This decides whether it is {chosen.cause}"
    else:
        fix = chosen.filled(chosen.remedy or chosen.column.fix)
        if fix[1:2].islower():
            fix = fix[0].lower() + fix[1:]
        step = chosen.filled(chosen.column.next_step)
        decides = f"{step}. This decides whether it is {chosen.cause}. If it is: {fix}"
    doubted = replace(chosen, cause=UNKNOWN.id, remedy=decides, message=message)
    if chosen.rule == ENDED:
        return doubted
    return replace(doubted, where=Where(), culprits=frozenset())


def _valued(candidate: Candidate, value_of: Callable[[str], str | None]) -> Candidate:
    """Give a candidate the values that its fix needs: from its own words, else from anywhere in the evidence."""
    names = fields_of(candidate.advice, candidate.reader, candidate.worlds)
    near = (*candidate.evidence, candidate.message)
    found = ((name, find_value(name, near) or value_of(name)) for name in names)
    values = {name: value for name, value in found if value is not None}
    return replace(candidate, values={**values, **candidate.values})


def _value(incident: Incident, candidate: Candidate, texts: Sequence[str], name: str) -> str | None:
    """Find a value that a fix needs: the job or the pod of the place, as its node has said, else what ranks wrote."""
    if name in ("job", "pod") and incident.jobs:
        return incident.jobs.get(candidate.where.node or "") or next(iter(incident.jobs.values()))
    return find_value(name, texts)


def _reader(incident: Incident) -> FixReader:
    if incident.logins.is_slurm:
        return FixReader.SLURM
    if incident.is_joined and set(incident.schedulers.values()) != {"none"}:
        return FixReader.SCHEDULED
    return FixReader.RUN


# -- the ladder ------------------------------------------------------------------------------------------


def _complete(verdict: Verdict, read: Verdict) -> Verdict:
    """Take the ladder's first step: what logs say comes after what is sure, and before what is not."""
    stands = verdict.confidence >= SURE or read.cause == UNKNOWN.id
    first = verdict
    second = read
    if not stands:
        first = read._replace(attempt=verdict.attempt)
        second = verdict
    evidence = (first.finding.evidence or second.finding.evidence)[:EVIDENCE]
    others = (*first.runners_up, second.finding._replace(id=second.cause or UNKNOWN.id), *second.runners_up)
    return first._replace(
        finding=first.finding._replace(evidence=evidence),
        victims=first.victims or second.victims,
        runners_up=_one_each(others, {first.cause or "", UNKNOWN.id}),
    )


def _one_each(findings: Iterable[Finding], without: Collection[str]) -> tuple[Finding, ...]:
    by_cause = group((finding for finding in findings if finding.id not in without), lambda finding: finding.id)
    return tuple(of_cause[0] for of_cause in by_cause.values())[:RUNNERS_UP]


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """Choose one candidate by the steps from the second on."""
    strongest = max(c.strength for c in candidates)
    best = _first([c for c in candidates if c.strength is strongest])
    if strongest is not Strength.ROOT or best.t is None:
        return best
    before = [c for c in candidates if c.strength is Strength.WEAK and _is_before(c, best)]
    return _first(before or [best])


def _first(candidates: Sequence[Candidate]) -> Candidate:
    remaining = [c for c in candidates if not any(_explains(other, c) for other in candidates)] or candidates
    earliest = min(_time(c) for c in remaining)
    near = [c for c in remaining if _time(c) <= earliest + CLOCK_ERROR]
    limit = max(c.confidence for c in near) - ABOUT
    return min((c for c in near if c.confidence >= limit), key=lambda c: (c.line or 0, -c.confidence, _time(c)))


def _explains(cause: Candidate, effect: Candidate) -> bool:
    is_known = effect.cause in CAUSES[cause.cause].explains
    return is_known and cause.confidence >= SURE and not _is_before(effect, cause)


def _is_before(one: Candidate, other: Candidate) -> bool:
    return one.t is not None and other.t is not None and one.t < other.t - CLEARLY


def _time(candidate: Candidate) -> float:
    return NEVER if candidate.t is None else candidate.t


def _counts(incident: Incident, candidate: Candidate) -> bool:
    """Tell whether a candidate counts: a stop makes ranks lose each other, so then only what explains itself does."""
    if incident.stop_reason is None or candidate.strength >= Strength.ROOT:
        return True
    return incident.detected_t is not None and candidate.strength is Strength.FINDING


# -- what goes with it -----------------------------------------------------------------------------------


def _runners_up(candidates: Sequence[Candidate], chosen: Candidate) -> tuple[Finding, ...]:
    """List what else failed, one a cause; complaints about a peer only where logs are all there is."""
    read = [c for c in candidates if c.line is not None and c.cause != UNKNOWN.id]
    rest = [*read, *(c for c in candidates if c.line is None and c.strength is not Strength.SYMPTOM)]
    rest = [c for c in rest if c.rule != ENDED or not _explains(chosen, c)]
    rest.sort(key=lambda c: (-c.strength, _time(c), -c.confidence, c.line or 0))
    return _one_each((*chosen.others, *(c.finding() for c in rest)), {chosen.cause})


def _victims(incident: Incident, chosen: Candidate) -> tuple[int, ...]:
    """List the other ranks that failed or were ended, with those of a lost node or agent, which nothing reports."""
    silent = incident.ranks_of({n.node for n in incident.lost} | incident.agent_deaths)
    ranks = {e.rank for e in incident.exits if e.failed} | (silent - {e.rank for e in incident.exits})
    return tuple(sorted(ranks - chosen.culprits))


def _victims_in_logs(logs: Evidence, chosen: Candidate) -> tuple[int, ...]:
    if not chosen.culprits and chosen.strength is not Strength.SYMPTOM:
        return ()
    complaints = logs.of_rows(*COMPLAINTS)
    complaining = {s.line.rank for s in complaints if s.line.rank is not None}
    ended = {e.rank for e in ends(logs) if e.rank is not None}
    waiting = {r.rank for r in logs.recordings if r.stands_at is not None}
    return tuple(sorted((complaining | ended | waiting) - chosen.culprits))


def _unexplained(incident: Incident) -> Verdict:
    """Make the verdict where all ranks that failed did so after allranks had begun to end them."""
    failed = [e for e in incident.exits if e.failed]
    ranks = tuple(sorted(e.rank for e in failed))
    message = f"allranks ended {name_ranks(incident, ranks)}, and no evidence says what had failed before"
    remedy = "keep the run directory and read events.jsonl from `ending` back"
    return Verdict(Finding(UNKNOWN.id, "fail", message, remedy), UNKNOWN.id, 0.2, ranks, attempt=incident.attempt)


def _nothing(logs: Evidence) -> Verdict:
    """Make the verdict on logs that no row and no rule fits: the last lines, and what to collect."""
    last = [line for line in logs.tail if line.text.strip()][-3:]
    ends_with = f", and the last line is: {short(last[-1].text, 160)}" if last else ": they are empty"
    message = f"nothing in these logs says why{ends_with}"
    evidence = tuple(quoted(line) for line in last)
    remedy = UNKNOWN.remedy(reader=FixReader.LOGS, worlds=logs.worlds)
    if last and all(sighting.row.role is Sign.HARMLESS for sighting in logs.sightings):
        if _ENDED_WELL.search(last[-1].text):
            message = f"no line of these logs tells of a failure{ends_with}"
        else:
            message = f"these logs do not say how the job ended, nor what is wrong with it{ends_with}"
        if _ENDED_WELL.search(last[-1].text) or _WORKS.search(last[-1].text):
            remedy = IF_HEALTHY
    return Verdict(Finding("unknown", "unknown", message, remedy, Where(), evidence), UNKNOWN.id, 0.1)


DISTINCT = 0.9  # of a candidate's own weight: a text that this fault alone prints
LIKELY = 0.5  # of its weight: below, it is one of several causes of the same text
# What an answer rests on, and how often such an answer was right.
FIGURES: dict[EvidenceName, float] = {
    "stated": 0.93,  # a text that one fault alone prints: 40 of 42
    "general": 0.61,  # a text that explains itself, and that other faults print too: 13 of 21
    "own-failure": 0.55,  # an exception or a crash of the program, without its reason: 5 of 9
    "complaint": 0.58,  # what a rank says of others, or a comparison of what ranks say: 6 of 10
    "guess": 0.4,  # one of several causes of the same text: never answered, as it is below SURE
}


def evidence_name(strength: Strength, weight: float) -> EvidenceName:
    """Name the kind of a candidate's evidence by its strength and its own weight."""
    if weight < LIKELY:
        return "guess"
    if strength >= Strength.FINDING:
        return "stated" if weight >= DISTINCT else "general"
    return "own-failure" if strength is Strength.WEAK else "complaint"
