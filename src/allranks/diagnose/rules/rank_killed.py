"""A rank was ended by a signal that allranks did not send."""

from __future__ import annotations

from ..candidate import Candidate, Strength
from ..incident import ExitRecord, Incident
from ..memory.figures import HostMemory
from ..memory.levers import host_levers
from ..memory.setting import setting_of
from ..words import further_words, last_lines, place, signal_name, thread_words
from .failures import KILL, Group, Role, failures, first_of

ID = "rank-killed"
SOURCE = "wait(2) status; oom_kill of /proc/vmstat (mm/oom_kill.c counts each process it ends); signal(7)"


def apply(incident: Incident) -> Candidate | None:
    """The first rank that was killed from outside."""
    failed = failures(incident)
    group = first_of(failed, "killed", incident, Role.ROOT) or first_of(failed, "killed", incident, Role.UNEXPLAINED)
    if group is None:
        return None
    first = group.first
    oom = first.signal == KILL and incident.oom_kills(first.exit.node) > 0
    cause, confidence = ("host-out-of-memory", 0.85) if oom else ("rank-killed", 0.7)
    return Candidate(
        ID,
        cause,
        Strength.ROOT if first.role is Role.ROOT else Strength.WEAK,
        _message(incident, group, oom),
        confidence,
        first.t,
        _remedy(incident, first.exit, oom),
        group.where(),
        _evidence(incident, group),
        culprits=group.ranks,
    )


def _remedy(incident: Incident, end: ExitRecord, oom: bool) -> str:
    """Of memory that ran out the levers, else the cause's own."""
    if not oom:
        return ""
    return host_levers(HostMemory(), setting_of(incident, end), end.node, incident.memory.get(end.node))


def _message(incident: Incident, group: Group, oom: bool) -> str:
    """A signal does not carry its sender, and the program may have sent it to itself: none is named."""
    first = group.first
    number = first.signal or 0
    signal = signal_name(number)
    was = "were" if group.scope != "all" and len(group.ranks) > 1 else "was"
    if first.raised is not None:
        within = ", ".join(part for part in (place(first.raised), group.pid) if part)
        how = f"interrupted by {first.raised.type}" + (f" ({within})" if within else "")
    else:
        how = f"killed by {signal}" + (f" ({group.pid})" if group.pid else "")
    head = f"{group.who(incident)} {was} {how}, and not by allranks"
    more = further_words(incident, first.rank)
    if oom:
        return (
            f"{head}: the kernel ran out of memory on {first.exit.node}, or at the limit of a control group there{more}"
        )
    if number == KILL:
        return f"{head}: sender unknown, and the kernel's out-of-memory counter did not move{more}"
    return f"{head}: sender unknown{thread_words(first.exit.tail)}{more}"


def _evidence(incident: Incident, group: Group) -> tuple[str, ...]:
    node = group.first.exit.node
    if group.first.signal != KILL:
        return last_lines(group.first.exit.tail)
    counter = f"out-of-memory kills on {node} during the attempt: {incident.oom_kills(node)}"
    return (counter, *last_lines(group.first.exit.tail, 2))
