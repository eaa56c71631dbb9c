"""Not all ranks came through init_process_group in time: who never came, and who waited."""

from __future__ import annotations

from allranks.findings import Where

from ..candidate import Candidate, Strength
from ..incident import Incident
from ..words import name_ranks, numbers

ID = "init-timeout"
SOURCE = "the runner's reports (init-entered, initialised) and --init-timeout"
REMEDY = "allranks logs --rank {rank} shows what it did instead; a slow start (a large data set, a first compilation) "
REMEDY += "needs a longer --init-timeout"
NOBODY = "allranks status names the state of every node; give slow nodes longer with --init-timeout"
STUCK = "all reached it and none came through: see their stacks, and with NCCL the log at --debug"


def apply(incident: Incident) -> Candidate | None:
    """Only where the time ran out."""
    if not incident.init_timeout_hit:
        return None
    absent = missing_ranks(incident)
    waiting = incident.init_entered - incident.initialised
    if not incident.init_entered:
        message = "the init timeout ran out before any rank had entered init_process_group"
        remedy = NOBODY
    elif absent:
        waited = f"; {name_ranks(incident, waiting)} waited for it" if waiting else ""
        message = f"{name_ranks(incident, absent)} never entered init_process_group{_left(incident, absent)}{waited}"
        message += " until the init timeout ran out"
        remedy = REMEDY.format(rank=min(absent))
    else:
        message = f"{name_ranks(incident, waiting)} entered init_process_group and did not come out of it in time"
        remedy = STUCK
    return Candidate(
        ID,
        "rendezvous-timeout",
        Strength.WEAK,
        message,
        0.85 if absent else 0.6,
        incident.detected_t,
        remedy,
        place_of(incident, absent),
        _evidence(incident),
        absent,
    )


def missing_ranks(incident: Incident) -> frozenset[int]:
    """Ranks that never entered init_process_group while others did; empty where nothing was reported."""
    return incident.all_ranks - incident.init_entered - incident.initialised if incident.init_entered else frozenset()


def place_of(incident: Incident, ranks: frozenset[int]) -> Where:
    """The one rank, or the one node that all of them lie on."""
    nodes = {incident.node_of(r) for r in ranks}
    node = next(iter(nodes)) or None if len(nodes) == 1 else None
    return Where(node=node, rank=next(iter(ranks)) if len(ranks) == 1 else None)


def _left(incident: Incident, absent: frozenset[int]) -> str:
    done = {e.rank for e in incident.exits if e.rank in absent and not e.failed}
    if not done:
        return ""
    return " (ended with code 0 before)" if done == absent else f" ({numbers(done)} ended with code 0 before)"


def _evidence(incident: Incident) -> tuple[str, ...]:
    entered = numbers(incident.init_entered) or "none"
    return (f"entered: {entered}", f"initialised: {numbers(incident.initialised) or 'none'}")
