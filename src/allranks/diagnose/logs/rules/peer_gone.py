"""What the surviving side says of a peer: right only where nothing says why the peer went."""

from __future__ import annotations

import re
from dataclasses import replace

from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence
from .table import candidate

ID = "peer-gone"
SOURCE = "NCCL: nccl.h (ncclRemoteError); gloo: transport/tcp/pair.cc; torch: TCPStore.cpp"
_TORCH = re.compile(
    r"gloo|NCCL|nccl|c10d|TCPStore|DistNetworkError|socket\.(?:cpp|cc)|\[rank\d+\]|RuntimeError|DistBackendError|Utils\.hpp"
)


def apply(evidence: Evidence) -> list[Candidate]:
    """One candidate; surer where torch's own transports say it."""
    seen = evidence.seen("remote-error", "remote-closed", "peer-closed", "store-lost", "net-recv")
    if not seen or evidence.weighed_by("ib-completion"):  # that rule knows more
        return []
    sure = [s for s in seen if s.row.id != "peer-closed" or _TORCH.search(s.line.text)]
    made = candidate(evidence, sure or seen)
    return [
        replace(
            made,
            rule=ID,
            cause="peer-died",
            strength=Strength.SYMPTOM,
            confidence=0.52 if sure else 0.31,
            message=made.message + " (a peer went away; why, its own log must say)",
        )
    ]
