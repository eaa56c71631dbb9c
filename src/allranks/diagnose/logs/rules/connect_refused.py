"""A connection that was not made: to which address, with which errno, and at which stage.

To the own loopback: the peer announced it. To a bridge of Docker or libvirt, or a link-local address: the wrong
interface. Refused: nobody listens there (any more). Timed out or no route, once the rendezvous had worked: a filter
or the wrong interface. A longer timeout is the answer to none of these.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence, first
from ..sighting import Sighting
from .table import candidate

ID = "connect-refused"
SOURCE = "connect(2); torch: socket.cpp; NCCL: misc/socket.cc; gloo: transport/tcp/pair.cc"
_LOOPBACK = re.compile(r"^(?:127\.|::1$|localhost$|\[?::ffff:127\.)")
_BRIDGE = re.compile(r"^(?:172\.17\.|192\.168\.122\.|169\.254\.|fe80:|10\.0\.3\.1$)")
Verdict = tuple[str, float, str, str]  # cause, confidence, words, second cause


def apply(evidence: Evidence) -> list[Candidate]:
    """One candidate a cause."""
    groups: dict[str, list[tuple[Sighting, Verdict]]] = {}
    for sighting in evidence.weighed_by(ID):
        told = meaning(sighting)
        groups.setdefault(told[0], []).append((sighting, told))
    found = []
    for cause, seen in groups.items():
        made = candidate(evidence, [s for s, _ in seen])
        _, confidence, words, second = max((t for _, t in seen), key=lambda t: t[1])
        strength = Strength.ROOT if confidence >= 0.65 and cause != "master-unreachable" else Strength.SYMPTOM
        message = made.message.split(" (", 1)[0] + f" ({words})" if words else made.message
        found.append(
            replace(
                made,
                rule=ID,
                cause=cause,
                strength=strength,
                confidence=confidence,
                message=message,
            )
        )
        if second:
            found.append(
                replace(
                    found[-1],
                    cause=second,
                    strength=Strength.SYMPTOM,
                    confidence=confidence * 0.6,
                )
            )
    return found


def meaning(sighting: Sighting) -> Verdict:
    """Of one line."""
    groups = sighting.groups
    peer = first(groups.get("peer"), groups.get("peer2"))
    error = first(groups.get("error"), groups.get("error2"), sighting.line.text).lower()
    to_master = sighting.row.id == "client-connect"
    if _LOOPBACK.match(peer) and not to_master:
        return "hostname-resolves-to-loopback", 0.85, "a peer announced its own loopback address", ""
    if _BRIDGE.match(peer):
        return (
            "wrong-interface",
            0.75,
            "that is an address of a bridge or of one link only: other nodes can't reach it",
            "",
        )
    if "connection abort" in error:
        return "port-blocked", 0.66, "the connection was cut on the way out: a firewall or a filter on this host", ""
    if to_master:
        return _to_master(error)
    if sighting.row.id == "gloo-mesh" and "refused" not in error and "reset" not in error:
        return (
            "wrong-interface",
            0.5,
            "the store was reached, Gloo's own connections between the ranks were not made: interface or firewall",
            "port-blocked",
        )
    if "timed out" in error or "no route" in error or "unreachable" in error:
        return (
            "port-blocked",
            0.5,
            "the rendezvous worked, this address and port do not: a firewall, or an interface that peers can't reach",
            "wrong-interface",
        )
    return (
        "peer-died",
        0.45,
        "nobody listens there: the peer has ended, or its node is in trouble",
        "node-network-down",
    )


def _to_master(error: str) -> Verdict:
    if "refused" in error:
        return "master-unreachable", 0.55, "the host answers, and nobody listens on the port", "port-blocked"
    if "timed out" in error:
        return (
            "master-unreachable",
            0.65,
            "no answer at all: wrong address, host down, or a filter that drops",
            "port-blocked",
        )
    return "master-unreachable", 0.62, "", ""
