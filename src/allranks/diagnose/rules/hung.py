"""Nothing moved for a time limit: in the training, or before all ranks came through init_process_group."""

from __future__ import annotations

from collections.abc import Collection

from allranks.findings import Hang, Where

from ..candidate import Candidate, Strength
from ..incident import Incident
from ..words import name_ranks, numbers, thread_words

DESTROYED = "Call destroy_process_group on all ranks alike, after the last collective of any of them"
SLOW_START = "`allranks logs --rank {rank}` shows what it did instead. A slow start (a large data set, a first "
SLOW_START += "compilation) needs a longer --init-timeout"


def hung(incident: Incident) -> Candidate | None:
    """Give what the stack samples tell; a rank that ended with 0 is a culprit too."""
    hang = incident.hang
    if hang is None:
        return None
    hang = _left_early(incident, hang)
    culprits = frozenset(hang.culprits if not hang.of_role else ())
    raised = [words for e in incident.exits if e.rank in culprits and (words := thread_words(e.tail))]
    return Candidate(
        hang.cause,
        hang.confidence,
        "".join((hang.message, *raised[:1])),
        hang.remedy,
        evidence=hang.evidence,
        culprits=culprits,
        where=hang.place if hang.nodes else place_of(incident, hang.culprits),
        t=incident.detected_t,
    )


def _left_early(incident: Incident, hang: Hang) -> Hang:
    """Say that ranks left early where they ended with code 0 and kept their process group: they had not finished."""
    ended = {e.rank for e in incident.exits if not e.failed}
    left = set(hang.culprits)
    if hang.cause != "uneven-data" or not left or not left <= ended - incident.departed.keys():
        return hang
    remedy = "`allranks logs --rank {rank}` shows where it left (sys.exit, return, an exception that was caught)"
    return hang._replace(
        cause="rank-exited-early",
        message=hang.message.replace("ended with code 0", "ended with code 0 and without destroy_process_group", 1),
        remedy=remedy.format(rank=min(left)),
    )


def init_timeout(incident: Incident) -> Candidate | None:
    """Name who never came to init_process_group, and who waited, where the time ran out."""
    if not incident.init_timeout_hit:
        return None
    absent = missing_ranks(incident)
    waiting = name_ranks(incident, incident.init_entered - incident.initialised)
    message = f"{waiting} entered init_process_group and did not come out of it in time"
    remedy = "all reached it and none came through. Compare their stacks, and with NCCL the log at --debug"
    if not incident.init_entered:
        message = "the init timeout ran out before any rank had entered init_process_group"
        remedy = "`allranks status` names the state of every node. Give slow nodes longer with --init-timeout"
    elif absent:
        message = f"{name_ranks(incident, absent)} never entered init_process_group{_ended(incident, absent)}"
        if waiting:
            message += f", and {waiting} waited for it"
        message += " until the init timeout ran out"
        remedy = SLOW_START.format(rank=min(absent))
    initialised = numbers(incident.initialised) or "none"
    return Candidate(
        "rendezvous-timeout",
        0.85 if absent else 0.6,
        message,
        remedy,
        Strength.WEAK,
        evidence=(f"entered: {numbers(incident.init_entered) or 'none'}", f"initialised: {initialised}"),
        culprits=absent,
        where=place_of(incident, absent),
        t=incident.detected_t,
    )


def missing_ranks(incident: Incident) -> frozenset[int]:
    """Find the ranks that never entered init_process_group while others did; none where nothing was reported."""
    if not incident.init_entered:
        return frozenset()
    return incident.all_ranks - incident.init_entered - incident.initialised


def called_at(incident: Incident, ranks: Collection[int]) -> str:
    """Give the one place at which ranks have called destroy_process_group; empty where it is not known."""
    places = {incident.departed[rank].fact.at if rank in incident.departed else "" for rank in ranks}
    if len(places) > 1:
        return ""
    return "".join(places)


def place_of(incident: Incident, ranks: Collection[int]) -> Where:
    """Give the one rank, or the one node that all of them are on; else no place."""
    nodes = {incident.node_of(rank) for rank in ranks}
    where = Where()
    if len(nodes) == 1:
        where = Where(node=nodes.pop() or None)
    if len(ranks) == 1:
        where = where._replace(rank=next(iter(ranks)))
    return where


def _ended(incident: Incident, absent: Collection[int]) -> str:
    done = {e.rank for e in incident.exits if e.rank in absent and not e.failed}
    if not done:
        return ""
    which = "" if done == absent else f"{numbers(done)} "
    return f" ({which}ended with code 0 before)"


RULES = {
    "hung": ("two stack samples of all ranks (the runner's dump signal, py-spy) and /proc: ../hangs", hung),
    "init-timeout": ("the runner's reports (init-entered, initialised) and --init-timeout", init_timeout),
}
