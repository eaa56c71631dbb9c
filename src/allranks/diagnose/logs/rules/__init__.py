"""The rules for logs, one a file: `ID`, `SOURCE` and `apply(evidence) -> candidates`; `../judge.py` chooses."""

from __future__ import annotations

from collections.abc import Callable

from ...rules.candidate import Candidate
from ..evidence import Evidence
from . import (
    clients_joined,
    collective_mismatch,
    collective_timeout,
    connect_refused,
    ddp_model,
    exception,
    exit_code,
    ib_completion,
    kernel_xid,
    peer_gone,
    registration,
    slurm_end,
    table,
    uneven_end,
)

_MODULES = (
    table,
    exception,
    kernel_xid,
    registration,
    collective_mismatch,
    collective_timeout,
    uneven_end,
    ddp_model,
    ib_completion,
    connect_refused,
    clients_joined,
    peer_gone,
    slurm_end,
    exit_code,
)
RULES: dict[str, Callable[[Evidence], list[Candidate]]] = {m.ID: m.apply for m in _MODULES}
SOURCES: dict[str, str] = {m.ID: m.SOURCE for m in _MODULES}
