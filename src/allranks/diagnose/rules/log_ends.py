"""How a process ended, by its launcher's account: native crashes explain themselves a little, SIGKILL does not.

Exit code -9 does not prove a lack of memory: it stays unknown unless something else speaks of memory. -15 is a
victim. A crash that follows a rank's own complaint about a peer or a time-out is the end of its abort, not a root.
"""

from __future__ import annotations

import re
from dataclasses import replace

from allranks.findings import Where

from ..candidate import Candidate, Strength
from ..causes import UNKNOWN
from ..logs.ends import End, after_abort, ends
from ..logs.sightings import Evidence, Sighting, name_place, quoted
from ..signatures import BY_ID, row_by_words
from ..words import on_node, short, signal_name, without_numbers
from .failures import BUS, KILL, NO_PAGE, NOT_STARTED
from .log_lines import by_words, read_candidate

CRASHES = {11: 0.7, 4: 0.6, 8: 0.6, BUS: 0.55}
VICTIMS = (15, 2, 1)
ENDED = "exit-code"  # the rule on processes that ended: which one did is sure, whatever ended it


def exit_codes(evidence: Evidence) -> list[Candidate]:
    """Make a candidate for each way in which processes ended; the report's first one speaks."""
    candidates: dict[str, Candidate] = {}
    for end in sorted(ends(evidence), key=lambda e: (not e.root, e.rank is None)):
        if end.signal in VICTIMS or end.code == 0:
            continue
        candidate = read_candidate(evidence, [end.sighting])
        read = _read(evidence, end)
        candidate = replace(
            candidate,
            rule=ENDED,
            cause=read.cause,
            strength=read.strength,
            confidence=read.confidence,
            message=f"{_name(end)} {read.message}",
            where=candidate.where._replace(rank=end.rank, node=end.node or candidate.where.node),
            evidence=(quoted(end.sighting.line),),
            culprits=frozenset() if end.rank is None else frozenset({end.rank}),
        )
        if candidate.cause in candidates:
            continue
        candidates[candidate.cause] = candidate
        other = replace(candidate, strength=Strength.SYMPTOM, remedy="")
        if end.signal == KILL:
            message = "the kernel may have killed it for memory: its log would say so"
            candidates["memory"] = replace(other, cause="host-out-of-memory", confidence=0.3, message=message)
        if end.signal == BUS:
            candidates["crash"] = replace(other, cause="segfault-native", confidence=0.35)
    return list(candidates.values())


def _read(evidence: Evidence, end: End) -> Candidate:
    signal = end.signal
    if signal in CRASHES and after_abort(evidence, end.sighting):
        what = f"crashed with {signal_name(signal)} while it aborted"
        return Candidate("segfault-native", 0.3, what, strength=Strength.SYMPTOM)
    if signal == BUS:
        return Candidate("shm-too-small", CRASHES[BUS], f"crashed with SIGBUS: {NO_PAGE}", strength=Strength.WEAK)
    if signal in CRASHES:
        return Candidate(
            "segfault-native", CRASHES[signal], f"crashed with {signal_name(signal)}", strength=Strength.WEAK
        )
    if signal == KILL:
        what = "was ended by SIGKILL, and nothing here says by whom (memory, a scheduler, a person)"
        return Candidate("rank-killed", 0.45, what, strength=Strength.WEAK)
    name = f"exit code {end.code}"
    if signal is not None:
        name = signal_name(signal)
    if end.code in NOT_STARTED:
        return Candidate(NOT_STARTED[end.code], 0.6, f"could not start its program ({name})", strength=Strength.WEAK)
    if end.code == 2:
        what = f"ended with {name}, a parser's code for arguments it refuses"
        return Candidate("bad-launch-arguments", 0.4, what, strength=Strength.SYMPTOM)
    return Candidate("unknown", 0.25, f"ended with {name}, and its last words are not here", strength=Strength.SYMPTOM)


def _name(end: End) -> str:
    local = end.sighting.groups.get("local")
    name = "a process"
    if end.rank is not None:
        name = f"rank {end.rank}"
    elif local:
        name = f"local rank {local}"
    return on_node(name, end.node)


def locate(evidence: Evidence, chosen: Candidate) -> Candidate:
    """Add the rank that the launcher reports as failed (or killed for memory) where no line names one."""
    where = chosen.where
    placed = where.rank is not None or chosen.culprits or chosen.strength is Strength.SYMPTOM
    if placed or (chosen.rule != "exception" and chosen.rule not in BY_ID):
        return chosen
    failed = [e for e in ends(evidence) if e.signal is None and e.code != 0]
    if chosen.cause in ("host-out-of-memory", "k8s-out-of-memory"):
        failed = [e for e in ends(evidence) if e.signal == KILL]
    nodes = {e.node for e in failed if e.node}
    if where.node is None and len(nodes) == 1 and not where.nodes:
        where = where._replace(node=nodes.pop())
    ranks = {e.rank for e in failed if e.rank is not None}
    if len(ranks) != 1 or evidence.names_ranks:
        return replace(chosen, where=where)
    where = where._replace(rank=next(iter(ranks)))
    name = name_place(where)
    message = chosen.message.replace("the program raised", f"{name} raised", 1)
    if not message.startswith(name):
        message = f"{name}: {message}"
    return replace(chosen, where=where, message=message, culprits=frozenset(ranks))


WORST = (
    re.compile(r"crashed|terminated|died|is dead|killed|[Aa]borted|FATAL|[Ff]atal|CRITICAL|[Uu]nhandled exception"),
    re.compile(r"rror\b|ERROR|FAILED|[Rr]esource exhausted|RESOURCE_EXHAUSTED|returned error"),
)
ALARMS = 3  # lines that are shown
WORDED = 0.45  # of a cause that a line's words alone tell: never more than the likeliest


def alarms(evidence: Evidence) -> list[Candidate]:
    """Show the lines that look worst, where nothing knows what they mean: a log that has some is not calm."""
    seen = {without_numbers(s.line.text)[:200]: s for s in reversed(evidence.weighed_by("alarm"))}
    if not seen:
        return []
    first_lines = sorted(seen.values(), key=lambda s: s.order)
    shown = sorted(sorted(first_lines, key=_harm)[:ALARMS], key=lambda s: s.order)
    head = min(shown, key=_harm)
    message = f"nothing in these logs says why, and the line that looks worst is: {short(head.line.text.strip(), 160)}"
    candidate = replace(read_candidate(evidence, [head]), rule="alarm", message=message, where=Where())
    candidate = replace(candidate, evidence=tuple(quoted(s.line) for s in shown))
    read = ((s, row_by_words("", s.line.text)) for s in shown if "NCCL WARN" not in s.line.text)
    telling = [
        by_words(replace(read_candidate(evidence, [s]), rule="alarm", evidence=candidate.evidence), row, s, WORDED)
        for s, row in read
        if row is not None and row.cause != UNKNOWN.id
    ]
    return [candidate, *(replace(c, strength=Strength.SYMPTOM) for c in telling[:1])]


def _harm(sighting: Sighting) -> int:
    text = sighting.line.text
    if sighting.line.is_error and not WORST[0].search(text):
        return 1
    return next((at for at, words in enumerate(WORST) if words.search(text)), len(WORST))


RULES = {
    "alarm": ("any program's words", alarms),
    ENDED: (
        "torch elastic/multiprocessing/errors/__init__.py, Slurm srun, signal(7), sh(1): 128 + signal",
        exit_codes,
    ),
}
