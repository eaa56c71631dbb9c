"""All rows in the order in which they are tried on a line: the first that fits has it.

Launchers' reports and harmless ones first, hardware before what it brings about, the general texts of operating
systems last.
"""

from __future__ import annotations

import re
from functools import lru_cache

from . import c10d, gpu, harmless, hosts, nccl, program
from .row import Role, Row

__all__ = ["BY_ID", "EXCEPTION", "KINDS", "NEEDS", "ROWS", "VARIABLE", "Role", "Row", "row_of"]

_REPORTS = frozenset(("agent-exit", "agent-rank", "agent-host", "agent-block", "srun-task", "signal-end"))
_GENERAL = frozenset(
    ("refused", "connect-timeout", "no-route", "peer-closed", "remote-closed", "segfault", "bus-error", "death-signal")
    + ("nccl-general", "remote-error")
)
_ALL = (*harmless.ROWS, *hosts.ROWS, *gpu.ROWS, *nccl.ROWS, *c10d.ROWS, *program.ROWS)
ROWS: tuple[Row, ...] = (
    *(r for r in _ALL if r.id in _REPORTS),
    *(r for r in _ALL if r.id not in _REPORTS | _GENERAL),
    *(r for r in _ALL if r.id in _GENERAL),
)
BY_ID: dict[str, Row] = {row.id: row for row in ROWS}

KINDS = tuple("Error Exception Exit Interrupt Iteration Failure Fault Timeout Empty Full Abort Mismatch".split())  # noqa: SIM905
"""Ends of the names of exceptions."""

EXCEPTION = re.compile(rf"^(?:\w+: )?(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:{'|'.join(KINDS)}))(?:: ?(?P<text>.*)|)$")
"""The last line of a traceback, behind the prefixes; program.py's rows have taken what they know."""

NEEDS: frozenset[str] = frozenset(
    ("Traceback (most recent", 'File "', "TensorShape")
    + tuple(f"{k}:" for k in KINDS)
    + tuple(need for row in ROWS for need in row.needs)
)
"""Literals: a line without any of them tells nothing, but for a bare name of an exception at its end."""


VARIABLE = "0123456789abcdef"
"""What two lines of one shape may differ in."""

_STRIP = str.maketrans("", "", VARIABLE)
_SHAPED = tuple((row, tuple(need.translate(_STRIP) for need in row.needs)) for row in ROWS)


@lru_cache(1024)
def _candidates(shape: str) -> tuple[Row, ...]:
    """The rows that a line of this shape may fit: a log has many lines of few shapes (see `scan`)."""
    return tuple(row for row, needs in _SHAPED if any(need in shape for need in needs))


def row_of(text: str) -> tuple[Row, re.Match[str]] | None:
    """The row that a line fits, with its match."""
    for row in _candidates(text.translate(_STRIP)):
        match = row.find(text)
        if match is not None:
            return row, match
    return None
