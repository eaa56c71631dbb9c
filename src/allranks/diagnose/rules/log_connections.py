"""A connection that was not made: to which address, with which errno, and at which stage.

To the own loopback: the peer announced it. To a bridge of Docker or libvirt, or a link-local address: the wrong
interface. Refused: nothing listens there (any more). Timed out or no route, once the rendezvous had worked: a filter
or the wrong interface. A longer timeout is the answer to none of these.
"""

from __future__ import annotations

import re
from dataclasses import replace

from allranks.plan.interfaces import HOST_LOCAL

from ..candidate import Candidate, Strength
from ..logs.sightings import Evidence, Sighting, first
from ..signatures.c10d import HOST_NETWORK
from .log_lines import ALSO, read_by_cause, read_candidate

_LOOPBACK = re.compile(r"^(?:127\.|::1$|localhost$|\[?::ffff:127\.)")
_BRIDGE = re.compile(r"^(?:172\.17\.|192\.168\.122\.|169\.254\.|fe80:|10\.0\.3\.1$)")
# inet_aton(3), which getaddrinfo asks first: 6841231 is 0.104.99.143.
_NUMBER_AS_ADDRESS = re.compile(r"^(?:::ffff:)?0\.(?!0\.0\.0$)\d")


def not_connected(evidence: Evidence) -> list[Candidate]:
    """Make one candidate a cause of connections that failed."""
    candidates = []
    for cause, pairs in read_by_cause(evidence, "connect-refused", read_line).items():
        candidate = read_candidate(evidence, [sighting for sighting, _ in pairs])
        surest = max((reading for _, reading in pairs), key=lambda reading: reading.confidence)
        explains_itself = surest.confidence >= 0.65 and cause != "master-unreachable"
        message = candidate.message
        if surest.message:
            message = f"{message.split(' (', 1)[0]} ({surest.message})"
        candidate = replace(
            candidate,
            rule="connect-refused",
            cause=cause,
            strength=Strength.ROOT if explains_itself else Strength.SYMPTOM,
            confidence=surest.confidence,
            message=message,
            remedy=surest.remedy or candidate.remedy,
        )
        candidates.append(candidate)
        if surest.also:
            confidence = surest.confidence * ALSO
            candidates.append(replace(candidate, cause=surest.also, strength=Strength.SYMPTOM, confidence=confidence))
    return candidates


def read_line(sighting: Sighting) -> Candidate:
    """Read one line by the address, the error and what could not be connected."""
    groups = sighting.groups
    peer = first(groups.get("peer"), groups.get("peer2"))
    error = first(groups.get("error"), groups.get("error2"), groups.get("error3"), sighting.line.text).lower()
    to_master = sighting.row.id == "client-connect"
    if _LOOPBACK.match(peer) and not to_master:
        return Candidate("hostname-resolves-to-loopback", 0.85, "a peer announced its own loopback address")
    if _BRIDGE.match(peer):
        words = "that is an address of a bridge or of one link only: other nodes cannot reach it"
        return Candidate("wrong-interface", 0.75, words, remedy=HOST_NETWORK)
    if "connection abort" in error:
        words = "the connection was cut on the way out: a firewall or a filter on this host"
        return Candidate("port-blocked", 0.66, words)
    if to_master:
        return _to_master(peer, error)
    if sighting.row.id == "gloo-mesh" and "refused" not in error and "reset" not in error:
        words = "the store was reached, Gloo's own connections between the ranks were not made: interface or firewall"
        return Candidate("wrong-interface", 0.5, words, also="port-blocked")
    if any(words in error for words in ("timed out", "timeout", "no route", "unreachable")):
        words = "the rendezvous worked, this address and port do not: a firewall, or the wrong interface"
        return Candidate("port-blocked", 0.5, words, also="wrong-interface")
    words = "nothing listens there: the peer has ended, or its node is in trouble"
    return Candidate("peer-died", 0.45, words, also="node-network-down")


def _to_master(peer: str, error: str) -> Candidate:
    if _NUMBER_AS_ADDRESS.match(peer):
        words = "no host has an address that begins with 0: a host name of digits alone is read as a number"
        return Candidate("name-resolution", 0.7, words, also="master-unreachable")
    if "refused" in error:
        words = "the host answers, and nothing listens on the port"
        return Candidate("master-unreachable", 0.55, words, also="port-blocked")
    if "timed out" in error:
        words = "no answer at all: wrong address, host down, or a filter that drops"
        return Candidate("master-unreachable", 0.65, words, also="port-blocked")
    return Candidate("master-unreachable", 0.62, "")


def virtual_interface(evidence: Evidence) -> list[Candidate]:
    """Suspect an interface of containers that NCCL has taken, where connections then failed."""
    taken = evidence.weighed_by("virtual-interface") + evidence.of_rows("nccl-address")
    virtual = [s for s in taken if s.groups.get("local") or s.groups.get("interface", "").startswith(HOST_LOCAL)]
    unanswered = evidence.of_rows("connect-timeout", "refused", "no-route", "connect-retries", "connect-tried-again")
    failed = evidence.weighed_by("connect-refused") + unanswered
    if not virtual or not failed:
        return []
    interface = first(virtual[0].groups.get("local"), virtual[0].groups.get("interface"))
    message = f"NCCL takes {interface}, an interface of this host alone, which other nodes cannot reach"
    candidate = replace(read_candidate(evidence, virtual), rule="virtual-interface", strength=Strength.SYMPTOM)
    return [replace(candidate, cause="wrong-interface", confidence=0.66, message=message)]


RULES = {
    "virtual-interface": ("NCCL misc/socket.cc (ncclFindInterfaces), veth(4)", virtual_interface),
    "connect-refused": (
        "connect(2), torch socket.cpp, NCCL misc/socket.cc, gloo transport/tcp/pair.cc",
        not_connected,
    ),
}
