"""Ranks lost or awaited a peer, and nothing shows why it went or did not come."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace

from allranks.findings import Where
from allranks.text import name_with

from ..candidate import Candidate, Strength
from ..hangs.compared import odd_call
from ..incident import Incident
from ..signatures.raised import AWAITED
from ..words import (
    DECIDE_AT_START,
    LAX_SCRIPT,
    LEFT_AT_START,
    STARTING_CALLS,
    last_lines,
    name_ranks,
    one_line,
    summary,
)
from .failures import Failure, FailureRole, telling
from .hung import DESTROYED, called_at, missing_ranks, place_of
from .rank_ended import out_of_memory

BEFORE = 1.0  # seconds by which a rank's end with 0 may seem to follow the complaint (the error comes at once)
SAMPLING = 60.0  # seconds: more than two samples of all ranks take
UNEVEN = "Where it had run out of data, give all ranks as many batches: DistributedSampler(drop_last=True)"
COLLECT = "run with --debug, and take the stacks of all ranks while it hangs: the rank that is elsewhere is at fault"
PEER = re.compile(r"(?:by (?:remote )?peer |remote=)(?:\[([0-9a-fA-F.:]+)\]:\d+|([\w.:-]+)<\d+>)")  # gloo, NCCL


def peer_lost(incident: Incident, failed: Sequence[Failure]) -> Candidate | None:
    """Read the first rank's complaint about a peer by what it complains of."""
    complaints = [f for f in failed if f.role is FailureRole.CONSEQUENCE and f.peer is not None]
    if not complaints:
        return None
    first = complaints[0]
    text = _text(first)
    base = Candidate("peer-died", 0.4, "", strength=Strength.SYMPTOM, evidence=(text,), t=first.t)
    # A standstill is noted again before it is twice as long, and sampled: else it did not go on until now.
    noted = incident.noted
    went_on = noted is not None and first.t - noted.t <= noted.fact.quiet + SAMPLING
    if went_on and any(f.peer == AWAITED for f in complaints):
        return _given_up(incident, base, text)
    if first.peer == AWAITED:
        return _awaited(incident, first, base, text)
    if "connectFullMesh" in text:
        return _mesh(incident, first, base, text)
    complaining = {f.rank for f in failed if f.peer}
    return _left(incident, first, base) or _lost(incident, first, base, text, complaining)


def _given_up(incident: Incident, base: Candidate, text: str) -> Candidate:
    assert incident.noted is not None
    hang = incident.noted.fact.hang
    culprits = frozenset(hang.culprits)
    return replace(
        base,
        cause=hang.cause,
        confidence=0.75,
        message=f"ranks gave up waiting: {hang.message}",
        remedy=hang.remedy,
        where=place_of(incident, culprits),
        evidence=(*hang.evidence[:2], text),
        culprits=culprits,
    )


def _text(failure: Failure) -> str:
    if failure.raised is None:
        return one_line("".join(last_lines(failure.exit.tail, 1)))
    last = telling(failure.raised)[-1]
    return summary(last.text or last.type, 200)


def _left(incident: Incident, first: Failure, base: Candidate) -> Candidate | None:
    """Blame ranks that had ended with code 0 or had destroyed their process group: they had done all of their steps."""
    who = name_ranks(incident, [first.rank])
    latest = first.t + BEFORE
    early = frozenset(e.rank for e in incident.exits if not e.failed and (e.t <= latest or not e.fact.expected))
    done = frozenset(r for r, one in incident.departed.items() if one.t <= latest) - {first.rank}
    early |= done & {e.rank for e in incident.exits if not e.failed}  # on its way out meanwhile
    if done and not done <= early and 2 * len(done) <= len(incident.all_ranks):
        called = name_with("destroy_process_group", called_at(incident, done))
        message = f"{name_ranks(incident, done)} called {called} and went on without the others, while {who} was still "
        message += "communicating"
        where = place_of(incident, done)
        remedy = f"{DESTROYED}. {UNEVEN}"  # torch may take seconds from its last line to its end with 0
        early_end = replace(base, cause="rank-exited-early", confidence=0.8, message=message, remedy=remedy)
        return replace(early_end, culprits=done, where=where)
    if done:
        ended = " and ended with code 0" if done <= early else ""
        message = f"{name_ranks(incident, done)} had finished (destroy_process_group{ended}) while {who} was still "
        message += "communicating: not all ranks made as many steps"
        few = done if 2 * len(done) <= len(incident.all_ranks) else ()  # else the others made too many
        where = place_of(incident, few)
        return replace(base, cause="uneven-data", confidence=0.75, message=message, culprits=done, where=where)
    if not early:
        return None
    message = f"{name_ranks(incident, early)} ended with code 0 while {who} was still communicating with it"
    where = place_of(incident, early)
    by_memory = (out_of_memory(incident, end, message) for end in incident.exits if end.rank in early)
    of_memory = next(filter(None, by_memory), None)
    if of_memory is not None:
        return replace(of_memory, confidence=0.75, strength=base.strength, culprits=early, where=where, t=base.t)
    if first.exit.hides:
        message += f". A script ends with 0 over what a signal has ended in a pipe: {LAX_SCRIPT}"
    return replace(base, cause="rank-exited-early", confidence=0.7, message=message, culprits=early, where=where)


def _lost(incident: Incident, first: Failure, base: Candidate, text: str, complaining: Set[int]) -> Candidate:
    trace = "" if first.raised is None else first.raised.traceback
    if "got 0 bytes" in _text(first) and any(f", in {call}\n" in trace for call in STARTING_CALLS):
        who = name_ranks(incident, [first.rank])
        message = f"before any step: {who} lost the store of rank 0 inside init_process_group ({text}). {LEFT_AT_START}"
        master = incident.node_of(0) or None
        return replace(base, message=message, remedy=DECIDE_AT_START, where=Where(node=master))
    node = _peer(incident, first)
    ranks = incident.ranks_of([node or ""]) - complaining
    peer = "a peer"
    if ranks:
        peer = node or peer
        base = replace(base, confidence=0.5, where=place_of(incident, ranks))
    if len(ranks) == 1:
        peer = name_ranks(incident, ranks)
        base = replace(base, culprits=ranks)
    who = name_ranks(incident, [first.rank])
    message = f"{who} lost the connection to {peer}, and no rank shows a failure of its own: {text}"
    return replace(base, message=message)


def _mesh(incident: Incident, first: Failure, base: Candidate, text: str) -> Candidate:
    """Blame the interface where Gloo's ranks did not reach each other.

    The rendezvous check may have shown that the one that the user set cannot work.
    """
    node = _peer(incident, first)
    here = first.exit.node or None
    message = f"{name_ranks(incident, [first.rank])} could not connect to {node or 'its peers'}: {text}"
    candidate = replace(base, cause="wrong-interface", confidence=0.5, message=message, where=Where(here, node))
    shown = [f for f in incident.findings if f.id == "wrong-interface" and f.where.node == first.exit.node]
    if not shown:
        return candidate
    return replace(
        candidate,
        confidence=0.9,
        message=f"{shown[0].message}; {message}",
        where=candidate.where._replace(interface=shown[0].where.interface),
        remedy=shown[0].remedy,
    )


def _peer(incident: Incident, first: Failure) -> str | None:
    words = [first.exit.tail] if first.raised is None else [link.text for link in first.raised.links]
    addresses = [a or b for text in words for a, b in PEER.findall(text)]
    nodes = [incident.addresses.get(address, address) for address in addresses]
    return next((node for node in nodes if node in incident.ranks_by_node), None)


def _awaited(incident: Incident, first: Failure, base: Candidate, text: str) -> Candidate:
    who = name_ranks(incident, [first.rank])
    absent = missing_ranks(incident)
    if absent and first.rank not in incident.initialised:
        message = f"{name_ranks(incident, absent)} never entered init_process_group, and {who} gave up waiting: {text}"
        missing = replace(base, cause="rendezvous-timeout", confidence=0.8, message=message, culprits=absent)
        return replace(missing, where=place_of(incident, absent))
    if "client socket has" in text:
        master = incident.master if incident.master in incident.ranks_by_node else None
        message = f"{who} could not connect to the master's store: {text}"
        return replace(base, cause="master-unreachable", confidence=0.6, message=message, where=Where(node=master))
    if re.search(r"clients joined|wait timeout after|DistStoreError", text):
        message = f"{who} waited in vain for the other ranks: {text}"
        return replace(base, cause="rendezvous-timeout", confidence=0.6, message=message)
    odd = odd_call(incident.calls)
    if odd is not None:
        message = f"{who} waited in a collective that ranks called unlike each other: {odd.message}"
        where = place_of(incident, odd.culprits)
        return replace(odd, strength=base.strength, message=message, evidence=base.evidence, where=where, t=base.t)
    message = f"{who} waited in a collective for a peer that did not come: {text}"
    return replace(base, cause="unknown", message=message, remedy=COLLECT)


RULES = {
    "peer-lost": (
        "gloo pair.cc and unbound_buffer.cc, torch socket.cpp, TCPStore.cpp and ProcessGroupNCCL.cpp, NCCL socket.cc",
        peer_lost,
    ),
}
