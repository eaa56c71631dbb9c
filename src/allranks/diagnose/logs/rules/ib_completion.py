"""An InfiniBand completion with an error: 12 is a link or a peer that no longer answers, 5 only follows."""

from __future__ import annotations

from dataclasses import replace

from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence
from .table import candidate

ID = "ib-completion"
SOURCE = "verbs.h: enum ibv_wc_status; NCCL: transport/net_ib.cc"
FLUSH = 5
WORDS = {
    4: "local protection error",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "retries are used up: the link or the peer is gone",
    13: "the receiver was never ready",
}


def apply(evidence: Evidence) -> list[Candidate]:
    """Errors that say something; else that nobody can know from this side."""
    seen = evidence.weighed_by(ID)
    telling = [s for s in seen if int(s.groups["status"]) != FLUSH]
    if telling:
        status = int(telling[0].groups["status"])
        made = candidate(evidence, telling)
        return [
            replace(
                made,
                confidence=0.75,
                message=f"{made.message} (status {status}: {WORDS.get(status, 'see ibv_wc_status')})",
            )
        ]
    if not seen:
        return []
    made = candidate(evidence, seen)
    peer = made.where.peer or "the peer"
    return [
        replace(
            made,
            cause="unknown",
            strength=Strength.SYMPTOM,
            confidence=0.58,
            message=made.message + " (status 5, flushed: the queue had failed before, on this side or the other's)",
            remedy=f"read the log and dmesg of {peer} at the same second: it ended, or its link did",
        ),
        replace(made, cause="nccl-ib-error", strength=Strength.SYMPTOM, confidence=0.33),
    ]
