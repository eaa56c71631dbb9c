"""Ranks lost or awaited a peer, and nothing shows why it went or did not come."""

from __future__ import annotations

import re
from dataclasses import replace

from allranks.findings import Where

from ..candidate import Candidate, Strength
from ..incident import Incident
from ..signatures.raised import AWAITED
from ..words import last_lines, name_ranks, one_line, summary
from .failures import Failure, Role, failures, telling
from .init_timeout import missing_ranks, place_of

ID = "peer-lost"
SOURCE = "gloo: pair.cc, unbound_buffer.cc; torch: socket.cpp, TCPStore.cpp, ProcessGroupNCCL.cpp; NCCL: socket.cc"
BEFORE = 1.0  # seconds by which a rank's end with 0 may seem to follow the complaint (the error comes at once)
COLLECT = "run with --debug, and take the stacks of all ranks while it hangs: the rank that is elsewhere is at fault"
PEER = re.compile(r"(?:by (?:remote )?peer |remote=)(?:\[([0-9a-fA-F.:]+)\]:\d+|([\w.:-]+)<\d+>)")  # gloo, NCCL


def apply(incident: Incident) -> Candidate | None:
    """The first complaint, read by what it complains of."""
    complaints = [f for f in failures(incident) if f.role is Role.CONSEQUENCE and f.peer is not None]
    if not complaints:
        return None
    first = complaints[0]
    text = _text(first)
    who = name_ranks(incident, [first.rank])
    base = Candidate(ID, "peer-died", Strength.SYMPTOM, "", 0.4, first.t, evidence=(text,))
    if first.peer == AWAITED:
        return _awaited(incident, first, base, who, text)
    if "connectFullMesh" in text:
        return _mesh(incident, first, base, f"{who} could not connect to", text)
    return _left(incident, first, base, who) or _gone(incident, first, base, who, text)


def _text(failure: Failure) -> str:
    """What it complained of, on one line."""
    if failure.raised is None:
        return one_line((last_lines(failure.exit.tail, 1) or ("",))[0])
    last = telling(failure.raised)[-1]
    return summary(last.text or last.type, 200)


def _left(incident: Incident, first: Failure, base: Candidate, who: str) -> Candidate | None:
    """Ranks that had ended with 0, or their process group: who ends it in order has done all of its steps."""
    early = frozenset(e.rank for e in incident.exits if not e.failed and (e.t <= first.t + BEFORE or not e.expected))
    done = frozenset(r for r, t in incident.departed.items() if t <= first.t + BEFORE) - {first.rank}
    if done:
        ended = " and ended with code 0" if done <= early else ""
        message = f"{name_ranks(incident, done)} had finished (destroy_process_group{ended}) while {who} was still "
        message += "communicating: not all ranks made as many steps"
        few = done if 2 * len(done) <= len(incident.all_ranks) else frozenset()  # else the others made too many
        where = place_of(incident, few)
        return replace(base, cause="uneven-data", confidence=0.75, message=message, culprits=done, where=where)
    if not early:
        return None
    message = f"{name_ranks(incident, early)} ended with code 0 while {who} was still communicating with it"
    where = place_of(incident, early)
    return replace(base, cause="rank-exited-early", confidence=0.7, message=message, culprits=early, where=where)


def _gone(incident: Incident, first: Failure, base: Candidate, who: str, text: str) -> Candidate:
    """The peer that it names by its address, as far as it is one rank."""
    node = _peer(incident, first)
    ranks = frozenset(incident.ranks_by_node.get(node or "", ())) - {f.rank for f in failures(incident) if f.peer}
    candidate = base
    peer = "a peer"
    if len(ranks) == 1:
        peer = name_ranks(incident, ranks)
        candidate = replace(base, confidence=0.5, culprits=ranks, where=place_of(incident, ranks))
    elif ranks:
        peer = node or peer
        candidate = replace(base, confidence=0.5, where=Where(node=node))
    message = f"{who} lost the connection to {peer}, and no rank shows a failure of its own: {text}"
    return replace(candidate, message=message)


def _mesh(incident: Incident, first: Failure, base: Candidate, what: str, text: str) -> Candidate:
    """Gloo's ranks did not reach each other; the rendezvous check may have shown that they cannot over what the user
    set."""
    node = _peer(incident, first)
    message = f"{what} {node or 'its peers'}: {text}"
    where = Where(node=first.exit.node or None, peer=node)
    candidate = replace(base, cause="wrong-interface", confidence=0.5, message=message, where=where)
    for finding in incident.findings:
        if finding.id == "wrong-interface" and finding.where.node == first.exit.node:
            where = replace(where, interface=finding.where.interface)
            message = f"{finding.message}; {message}"
            return replace(candidate, confidence=0.9, message=message, where=where, remedy=finding.remedy)
    return candidate


def _peer(incident: Incident, first: Failure) -> str | None:
    """The node that the complaint names by its address."""
    words = [first.exit.tail] if first.raised is None else [link.text for link in first.raised.links]
    addresses = [a or b for text in words for a, b in PEER.findall(text)]
    named = [n for n in (incident.addresses.get(k, k) for k in addresses) if n in incident.ranks_by_node]
    return named[0] if named else None


def _awaited(incident: Incident, first: Failure, base: Candidate, who: str, text: str) -> Candidate:
    """In the rendezvous a rank or the master is missing; in a collective only the stacks can tell."""
    absent = missing_ranks(incident)
    if absent and first.rank not in incident.initialised:
        message = f"{name_ranks(incident, absent)} never entered init_process_group, and {who} gave up waiting: {text}"
        where = place_of(incident, absent)
        missing = replace(base, cause="rendezvous-timeout", confidence=0.8, culprits=absent, where=where)
        return replace(missing, message=message)
    if "client socket has" in text:
        master = incident.master if incident.master in incident.ranks_by_node else None
        message = f"{who} could not connect to the master's store: {text}"
        return replace(base, cause="master-unreachable", confidence=0.6, message=message, where=Where(node=master))
    if re.search(r"clients joined|wait timeout after|DistStoreError", text):
        message = f"{who} waited in vain for the other ranks: {text}"
        return replace(base, cause="rendezvous-timeout", confidence=0.6, message=message)
    message = f"{who} waited in a collective for a peer that did not come: {text}"
    return replace(base, cause="unknown", message=message, remedy=COLLECT)
