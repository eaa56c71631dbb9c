"""How a process ended, by its launcher's account: native crashes explain themselves a little, SIGKILL does not.

Exit code -9 is no proof of memory: it stays unknown unless something else speaks of memory. -15 is a victim. A
crash that follows a rank's own complaint about a peer or a time-out is the end of its abort, not a root.
"""

from __future__ import annotations

from dataclasses import replace

from ..candidate import Candidate, Strength
from ..causes import CAUSES
from ..logs.ends import End, after_abort, ends
from ..logs.evidence import Evidence, name_place, quoted
from ..signatures import BY_ID
from ..words import signal_name
from .failures import BUS, KILL
from .log_lines import read_candidate

CRASHES = {11: 0.7, 4: 0.6, 8: 0.6, BUS: 0.55}
VICTIMS = (15, 2, 1)


def exit_codes(evidence: Evidence) -> list[Candidate]:
    """A candidate for each way in which processes ended; the report's first one speaks."""
    candidates: dict[str, Candidate] = {}
    for end in sorted(ends(evidence), key=lambda e: (not e.root, e.rank is None)):
        candidate = _judged(evidence, end)
        if candidate is None or candidate.cause in candidates:
            continue
        candidates[candidate.cause] = candidate
        other = replace(candidate, strength=Strength.SYMPTOM, remedy="")
        if end.signal == KILL:
            message = "the kernel may have killed it for memory: its log would say so"
            candidates["memory"] = replace(other, cause="host-out-of-memory", confidence=0.3, message=message)
        if end.signal == BUS:
            candidates["shm"] = replace(other, cause="shm-too-small", confidence=0.35)
    return list(candidates.values())


def _judged(evidence: Evidence, end: End) -> Candidate | None:
    """None for victims."""
    signal = end.signal
    if signal in VICTIMS or end.code == 0:
        return None
    name = f"exit code {end.code}" if signal is None else signal_name(signal)
    cause = "unknown"
    strength = Strength.WEAK
    confidence = 0.45
    if signal in CRASHES:
        cause = "segfault-native"
        what = f"crashed with {name}"
        confidence = CRASHES[signal]
        if after_abort(evidence, end.sighting):
            what += " while it aborted"
            strength = Strength.SYMPTOM
            confidence = 0.3
    elif signal == KILL:
        what = "was ended by SIGKILL, and nothing here says by whom (memory, a scheduler, a person)"
    elif end.code in (126, 127):
        cause = "remote-path-missing" if end.code == 127 else "permission-denied"
        what = f"could not start its program ({name})"
        confidence = 0.6
    elif end.code == 2:
        cause = "bad-launch-arguments"
        what = f"ended with {name}, a parser's code for arguments it refuses"
        strength = Strength.SYMPTOM
        confidence = 0.4
    else:
        what = f"ended with {name}, and its last words are not here"
        strength = Strength.SYMPTOM
        confidence = 0.25
    candidate = read_candidate(evidence, [end.sighting])
    where = replace(candidate.where, rank=end.rank, node=end.node or candidate.where.node)
    return replace(
        candidate,
        rule="exit-code",
        cause=cause,
        strength=strength,
        confidence=confidence,
        message=f"{_name(end)} {what}",
        remedy=CAUSES["rank-killed"].remedy(where) if signal == KILL else "",
        where=where,
        evidence=(quoted(end.sighting.line),),
        culprits=frozenset() if end.rank is None else frozenset({end.rank}),
    )


def _name(end: End) -> str:
    local = end.sighting.groups.get("local")
    name = f"local rank {local}" if local else "a process"
    if end.rank is not None:
        name = f"rank {end.rank}"
    return f"{name} on {end.node}" if end.node else name


def locate(evidence: Evidence, chosen: Candidate) -> Candidate:
    """Where no line names the rank, the launcher's report may: the one that failed (or was killed for memory)."""
    where = chosen.where
    placed = where.rank is not None or chosen.culprits or chosen.strength is Strength.SYMPTOM
    if placed or (chosen.rule != "exception" and chosen.rule not in BY_ID):
        return chosen
    memory = chosen.cause in ("host-out-of-memory", "k8s-out-of-memory")
    failed = [e for e in ends(evidence) if (e.signal == KILL if memory else e.signal is None and e.code != 0)]
    ranks = {e.rank for e in failed} - {None}
    nodes = {e.node for e in failed} - {""}
    if where.node is None and len(nodes) == 1 and not where.nodes:
        where = replace(where, node=nodes.pop())
    if len(ranks) != 1 or evidence.names_ranks:
        return replace(chosen, where=where)
    rank = ranks.pop()
    where = replace(where, rank=rank)
    name = name_place(where)
    raised = chosen.message.replace("the program raised", f"{name} raised", 1)
    message = raised if raised.startswith(name) else f"{name}: {raised}"
    return replace(chosen, where=where, message=message, culprits=frozenset({rank} if rank is not None else ()))


RULES = {
    "exit-code": (
        "torch: elastic/multiprocessing/errors/__init__.py; Slurm: srun; signal(7), sh(1): 128 + signal",
        exit_codes,
    ),
}
