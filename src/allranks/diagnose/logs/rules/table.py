"""A text that a row knows is what it says, for the rank or node whose line it is.

Equal causes are one candidate: the earliest line speaks, later ones are further evidence. Where every rank says
the same, no rank is to blame.
"""

from __future__ import annotations

import re
from dataclasses import replace

from allranks.findings import Where

from ...memory.figures import read_gpu
from ...memory.levers import gpu_levers
from ...memory.setting import Setting
from ...rules.candidate import Candidate, Strength
from ...signatures import Role
from ..evidence import Evidence, cut, first, place_of, shown, who
from ..sighting import Sighting

ID = "signature-table"
SOURCE = "each row names its own"
STRENGTH = {Role.ROOT: Strength.ROOT, Role.WEAK: Strength.WEAK, Role.SYMPTOM: Strength.SYMPTOM}
ALSO = 0.6  # of its confidence, for the second cause that a text can have


def apply(evidence: Evidence) -> list[Candidate]:
    """A candidate for each cause and role."""
    groups: dict[tuple[str, Role], list[Sighting]] = {}
    for sighting in evidence.sightings:
        if sighting.row.role in STRENGTH and not sighting.row.rule:
            groups.setdefault((sighting.row.cause, sighting.row.role), []).append(sighting)
    found = []
    for seen in groups.values():
        found.append(candidate(evidence, seen))
        found += _second(evidence, seen)
    return found


def candidate(evidence: Evidence, seen: list[Sighting], **change: object) -> Candidate:
    """The earliest of the surest sightings, with the lines of the others."""
    best = max(s.row.confidence for s in seen)
    head = next(s for s in seen if s.row.confidence >= best - 0.05)
    where = _place(head, seen)
    ranks = frozenset(s.rank for s in seen if s.rank is not None)
    if "late" in head.groups:  # they are named by another
        ranks = frozenset(int(n) for n in re.findall(r"\d+", head.groups["late"]))
    everybody = "late" not in head.groups and len(ranks) > 1 and ranks >= evidence.ranks
    if everybody:
        where = replace(where, rank=None)
    name = f"every rank seen ({len(ranks)})" if everybody else who(where) or who(place_of(head))
    text = f"{name}: {cut(head.line.text)}" if name else cut(head.line.text)
    means = f" ({head.row.means})" if head.row.means else ""
    lines = list(dict.fromkeys(shown(s.line) for s in (head, *_others(seen, head))))
    made = Candidate(
        head.row.id,
        head.row.cause,
        STRENGTH.get(head.row.role, Strength.SYMPTOM),
        text + means,
        head.row.confidence,
        float(head.order),
        _fix(head),
        where,
        tuple(lines[:3]),
        frozenset() if everybody or complains(head) else ranks,
    )
    return replace(made, **change)  # type: ignore[arg-type]


def _fix(head: Sighting) -> str:
    """Of GPU memory the levers, with the figures of the line; else empty: the cause's own."""
    memory = read_gpu(head.line.text) if head.row.cause == "cuda-out-of-memory" else None
    return gpu_levers(memory, Setting()) if memory is not None else ""


def _place(head: Sighting, seen: list[Sighting]) -> Where:
    """The head's, completed by what all others agree on; who only complains of another is not the place."""
    where = place_of(head)
    rest = [place_of(s) for s in seen]
    for key in ("node", "peer", "interface", "port", "gpu"):
        values = {getattr(w, key) for w in rest} - {None}
        if getattr(where, key) is None and len(values) == 1:
            where = replace(where, **{key: values.pop()})
    nodes = tuple(dict.fromkeys(w.node for w in rest if w.node))
    if len(nodes) > 1 and where.rank is None:
        where = replace(where, node=None, nodes=nodes)
    if complains(head):
        named = first(head.groups.get("node"), head.groups.get("node2")) or None
        where = replace(where, rank=None, gpu=None, node=named, nodes=())
    return where


def complains(sighting: Sighting) -> bool:
    """True where the line's own rank is the one that waits or suffers."""
    return sighting.row.role in (Role.SYMPTOM, Role.CASCADE) and "late" not in sighting.groups


def _others(seen: list[Sighting], head: Sighting) -> list[Sighting]:
    """Other ranks and other texts before repetitions."""
    known: set[object] = {(head.rank, head.row.id)}
    new = [s for s in seen if (s.rank, s.row.id) not in known and not known.add((s.rank, s.row.id))]  # type: ignore[func-returns-value]
    return [*new, *seen]


def _second(evidence: Evidence, seen: list[Sighting]) -> list[Candidate]:
    """The other cause that the same text can have: for the runners-up."""
    doubtful = [s for s in seen if s.row.also]
    if not doubtful:
        return []
    row = doubtful[0].row
    return [
        candidate(
            evidence,
            doubtful,
            cause=row.also,
            strength=Strength.SYMPTOM,
            confidence=row.confidence * ALSO,
        )
    ]
