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
    return (_waited if first.peer == AWAITED else _gone)(incident, first)


def _said(failure: Failure) -> str:
    """What it complained of, on one line."""
    if failure.raised is None:
        return one_line((last_lines(failure.exit.tail, 1) or ("",))[0])
    last = telling(failure.raised)[-1]
    return summary(last.text or last.type, 200)


def _candidate(incident: Incident, first: Failure, cause: str, message: str, confidence: float, remedy: str,
               culprits: frozenset[int] = frozenset(), where: Where | None = None) -> Candidate:  # fmt: skip
    return Candidate(ID, cause, Strength.SYMPTOM, message, confidence, first.t, remedy,
                     where or place_of(incident, culprits), (_said(first),), culprits)  # fmt: skip


def _gone(incident: Incident, first: Failure) -> Candidate:
    who = name_ranks(incident, [first.rank])
    if "connectFullMesh" in _said(first):
        return _mesh(incident, first)
    early = frozenset(e.rank for e in incident.exits if not e.failed and (e.t <= first.t + BEFORE or not e.expected))
    done = frozenset(r for r, t in incident.departed.items() if t <= first.t + BEFORE) - {first.rank}
    if done:
        return _done(incident, first, done, early)
    if early:
        message = f"{name_ranks(incident, early)} ended with code 0 while {who} was still communicating with it"
        return _candidate(incident, first, "rank-exited-early", message, 0.7, "", early)
    node = _peer(incident, first)
    ranks = frozenset(incident.ranks_by_node.get(node or "", ())) - {f.rank for f in failures(incident) if f.peer}
    peer = "a peer" if not ranks else name_ranks(incident, ranks) if len(ranks) == 1 else node
    message = f"{who} lost the connection to {peer}, and no rank shows a failure of its own: {_said(first)}"
    few, where = (ranks, None) if len(ranks) == 1 else (frozenset[int](), Where(node=node if ranks else None))
    confidence = 0.5 if ranks else 0.4
    return _candidate(incident, first, "peer-died", message, confidence, "", few, where)


def _mesh(incident: Incident, first: Failure) -> Candidate:
    """Gloo's ranks did not reach each other; the gate may have shown that they can't over what the user set."""
    node = _peer(incident, first)
    message = f"{name_ranks(incident, [first.rank])} could not connect to {node or 'its peers'}: {_said(first)}"
    where = Where(node=first.exit.node or None, peer=node)
    seen = next((f for f in incident.findings if f.id == "wrong-interface" and f.where.node == first.exit.node), None)
    if seen is None:
        return _candidate(incident, first, "wrong-interface", message, 0.5, "", where=where)
    where = replace(where, interface=seen.where.interface)
    return _candidate(incident, first, "wrong-interface", f"{seen.message}; {message}", 0.9, seen.remedy, where=where)


def _peer(incident: Incident, first: Failure) -> str | None:
    """The node that the complaint names by its address."""
    words = [first.exit.tail] if first.raised is None else [link.text for link in first.raised.links]
    found = [a or b for text in words for a, b in PEER.findall(text)]
    named = [n for n in (incident.addresses.get(k, k) for k in found) if n in incident.ranks_by_node]
    return named[0] if named else None


def _done(incident: Incident, first: Failure, done: frozenset[int], early: frozenset[int]) -> Candidate:
    """Who ends its process group in order has done all of its steps, by its own account."""
    ended = " and ended with code 0" if done <= early else ""
    message = f"{name_ranks(incident, done)} had finished (destroy_process_group{ended}) while "
    message += f"{name_ranks(incident, [first.rank])} was still communicating: not all ranks made as many steps"
    few = done if 2 * len(done) <= len(incident.all_ranks) else frozenset()  # else the others made too many
    return _candidate(incident, first, "uneven-data", message, 0.75, "", done, place_of(incident, few))


def _waited(incident: Incident, first: Failure) -> Candidate:
    """In the rendezvous a rank or the master is missing; in a collective only the stacks can tell."""
    said, who = _said(first), name_ranks(incident, [first.rank])
    absent = missing_ranks(incident)
    rendezvous = first.rank not in incident.initialised
    if rendezvous and absent:
        message = f"{name_ranks(incident, absent)} never entered init_process_group, and {who} gave up waiting: {said}"
        return _candidate(incident, first, "rendezvous-timeout", message, 0.8, "", absent)
    if "client socket has" in said:
        message = f"{who} could not connect to the master's store: {said}"
        master = incident.master if incident.master in incident.ranks_by_node else None
        return _candidate(incident, first, "master-unreachable", message, 0.6, "", where=Where(node=master))
    if re.search(r"clients joined|wait timeout after|DistStoreError", said):
        message = f"{who} waited in vain for the other ranks: {said}"
        return _candidate(incident, first, "rendezvous-timeout", message, 0.6, "")
    return _candidate(incident, first, "unknown", f"{who} waited in a collective for a peer that did not come: {said}",
                      0.4, COLLECT)  # fmt: skip
