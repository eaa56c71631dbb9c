"""RDMA memory that could not be registered: host memory by the limit, GPU memory by a missing way to it."""

from __future__ import annotations

from dataclasses import replace

from ...rules.candidate import Candidate, Strength
from ..evidence import Evidence, shown
from .table import candidate

ID = "registration"
SOURCE = "NCCL: transport/net_ib/reg.cc; nvidia-peermem; ibv_reg_dmabuf_mr(3)"


def apply(evidence: Evidence) -> list[Candidate]:
    """GPU memory where the log also says that neither dmabuf nor peermem is there."""
    failed = evidence.seen("ib-register")
    without = evidence.seen("dmabuf-symbol", "peermem", "gdr")
    if not failed or not without:
        return []
    made = candidate(evidence, failed)
    lines = (shown(failed[0].line), *(shown(s.line) for s in without[:2]))
    return [
        replace(
            made,
            rule=ID,
            cause="nccl-p2p-error",
            strength=Strength.ROOT,
            confidence=0.85,
            evidence=lines,
            message=made.message + " (GPU memory can't be registered: no dmabuf in the library, or no peermem module)",
        )
    ]
