"""A collective that timed out: ranks are compared by what they waited for; one rank's view proves nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...naming import numbers
from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence, shown, whole
from ..sighting import Sighting
from .exit_code import ends
from .table import candidate

ID = "collective-timeout"
SOURCE = "torch: ProcessGroupNCCL.cpp (checkTimeout, pg_status, heartbeatMonitor)"
COLLECT = (
    "set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 and compare the dumps of all ranks; "
    "py-spy dump on every rank; read each rank's log from its beginning"
)
ENOUGH = 2  # ranks that wait alike before an absent one is suspected


@dataclass(frozen=True)
class Wait:
    """What one rank waited for."""

    rank: int
    seq: int | None
    op: str
    size: tuple[int | None, int | None]
    sighting: Sighting


def waits(evidence: Evidence) -> dict[int, Wait]:
    """The first time-out of each rank."""
    found: dict[int, Wait] = {}
    for s in evidence.seen("watchdog"):
        rank = whole(s.groups.get("rank"))
        rank = s.rank if rank is None else rank
        if rank is not None and rank not in found:
            found[rank] = Wait(
                rank,
                whole(s.groups.get("seq")),
                s.groups.get("op", ""),
                (whole(s.groups.get("numel")), whole(s.groups.get("out"))),
                s,
            )
    return found


def apply(evidence: Evidence) -> list[Candidate]:
    """Other calls, other sizes, ranks that never came; else unknown."""
    waiting = waits(evidence)
    seen = evidence.seen("watchdog") or evidence.seen("dump-signal", "watchdog-stuck")
    if not seen:
        return []
    made = replace(
        candidate(evidence, seen[:1]),
        rule=ID,
        strength=Strength.SYMPTOM,
        where=replace(candidate(evidence, seen[:1]).where, rank=None),
        evidence=tuple(shown(w.sighting.line) for w in list(waiting.values())[:3]) or (shown(seen[0].line),),
        culprits=frozenset(),
    )
    told = _compared(list(waiting.values())) or _absent(evidence, waiting)
    if told:
        cause, confidence, message, late = told
        where = replace(made.where, rank=min(late) if len(late) == 1 else None)
        return [
            replace(
                made,
                cause=cause,
                confidence=confidence,
                message=message,
                where=where,
                culprits=late,
            )
        ]
    ranks = numbers(waiting) if waiting else "a rank"
    words = (
        f"ranks {ranks} waited for the same collective"
        if len(waiting) > 1
        else f"rank {ranks} waited in a collective"
        if waiting
        else "a rank waited in a collective"
    )
    return [
        replace(
            made,
            cause="unknown",
            confidence=0.4,
            remedy=COLLECT,
            message=f"{words} until it timed out; what the others did is not in this log",
        ),
        replace(
            made,
            cause="straggler",
            confidence=0.3,
            message=f"{words} until it timed out: another rank may have been late",
        ),
    ]


Told = tuple[str, float, str, frozenset[int]]


def _compared(waiting: list[Wait]) -> Told | None:
    """Different calls or sizes at one place in the sequence; or ranks at different places."""
    if len(waiting) < ENOUGH:
        return None
    ops, sizes, seqs = {w.op for w in waiting}, {w.size for w in waiting}, {w.seq for w in waiting}
    if len(ops) > 1:
        parts = ", ".join(f"rank {w.rank} {w.op}" for w in waiting[:6])
        return "collective-mismatch", 0.82, f"ranks waited in different collectives: {parts}", frozenset()
    if len(seqs) == 1 and len(sizes) > 1:
        parts = ", ".join(f"rank {w.rank} {w.size[0]} elements" for w in waiting[:6])
        return (
            "collective-shape-mismatch",
            0.7,
            f"ranks waited in the same {waiting[0].op} with different sizes: {parts}",
            frozenset(),
        )
    known = sorted(s for s in seqs if s is not None)
    if len(known) > 1:
        behind = frozenset(w.rank for w in waiting if w.seq == known[0])
        words = f"ranks {numbers(behind)} were behind, at collective {known[0]} of {known[-1]}: they called fewer"
        return "collective-mismatch", 0.6, words, behind
    return None


def _absent(evidence: Evidence, waiting: dict[int, Wait]) -> Told | None:
    """Ranks that exist and did not wait, while several others did."""
    known = evidence.ranks | {e.rank for e in ends(evidence) if e.rank is not None}
    late = frozenset(known - set(waiting))
    aborted = frozenset(e.rank for e in ends(evidence) if e.rank is not None and e.signal == 6)
    late -= aborted
    if len(waiting) < ENOUGH or not late or len(late) >= len(waiting) + len(aborted - set(waiting)):
        return None
    one = next(iter(waiting.values()))
    plural = "s" if len(late) > 1 else ""
    words = f"rank{plural} {numbers(late)} did not come to the {one.op} (number {one.seq}) in which the others waited"
    return "straggler", 0.62, words, late
