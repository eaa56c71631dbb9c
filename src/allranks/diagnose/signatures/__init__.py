"""All rows in the order in which they are tried on a line: the first that fits has it.

Launchers' reports and harmless ones first, hardware before what it brings about, the general texts of operating
systems last.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from . import accelerators, c10d, files, gpu, harmless, hosts, launchers, nccl, raised, site, vocabulary
from . import training_program as program
from .c10d import compare_calls
from .row import Row, Scope, Sign

__all__ = ["Row", "Scope", "Sign"]

_GENERAL = frozenset(
    (
        *("refused", "connect-timeout", "no-route", "peer-closed", "remote-closed", "remote-error"),
        *("segfault", "bus-error", "death-signal", "nccl-general"),
    )
)
_ALL = (
    *(*raised.ROWS, *harmless.ROWS, *hosts.KERNEL_ROWS, *files.ROWS, *launchers.STARTS, *hosts.ROWS),
    *(*accelerators.ROWS, *gpu.ROWS, *nccl.ROWS, *c10d.ROWS, *program.ROWS, *launchers.ROWS),
)
ROWS: tuple[Row, ...] = (
    *sorted(_ALL, key=lambda row: (row.rule != "exit-code", row.id in _GENERAL)),
    *raised.LAST,
    *launchers.GENERAL,
    *vocabulary.ROWS,
    *vocabulary.OF_TRACE,
)
BY_ID: dict[str, Row] = {row.id: row for row in ROWS}

KINDS = (
    *("Error", "Exception", "OfResources", "Exit", "Interrupt", "Iteration", "Failure"),
    *("Fault", "Timeout", "Empty", "Full", "Abort", "Mismatch", "Invalid", "Unsupported"),
)
"""Ends of the names of exceptions."""

EXCEPTION = re.compile(
    rf"^(?!restartPolicy)(?:\w+: )?(?P<type>(?:[A-Za-z_]\w*\.)*(?:_?[A-Z]\w*(?:{'|'.join(KINDS)})|"
    rf"Exception))(?:: ?(?P<text>.*)|)$"
)
"""The last line of a traceback, behind the prefixes; program.py's rows have taken what they know."""

DOTTED = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)+[A-Z]\w*)(?:: ?(?P<text>.*)|)$")
"""Below a traceback's last frame: an exception of any name, with its module."""

MENTIONED = re.compile(
    r"(?<![\w.])(?P<type>(?:[A-Za-z_]\w{0,60}\.){0,6}(?:_?[A-Z]\w{0,60}(?:Error|Exception)|Exception)): "
    r"(?P<text>\S.{0,2000})"
)
"""An exception with its text anywhere in a line: a logger's own prefix is of any form."""

NEEDS: frozenset[str] = frozenset(
    (
        "Traceback (most recent",
        'File "',
        "TensorShape",
        "TensorDtypes",
        "RCCL version",
        *(f"{kind}:" for kind in KINDS),
        *(need for row in ROWS if Scope.LOG in row.scope for need in row.needs),
    )
)
"""Literals: a line without any of them tells nothing, but for a bare name of an exception at its end."""


VARIABLE = "0123456789abcdef"
"""What two lines of one shape may differ in."""

_STRIP = str.maketrans("", "", VARIABLE)
_SHAPED = tuple((row, tuple(need.translate(_STRIP) for need in row.needs)) for row in ROWS if Scope.LOG in row.scope)


@lru_cache(1024)
def _candidates(shape: str) -> tuple[Row, ...]:
    """Choose the rows that a line of this shape may fit: a log has many lines of few shapes (see `scan`)."""
    return tuple(row for row, needs in _SHAPED if any(need in shape for need in needs))


def row_of(text: str) -> tuple[Row, re.Match[str]] | None:
    """Find the row that a line of a log fits, with its match; the site's own rows come first."""
    for row in (*site.rows(), *_candidates(text.translate(_STRIP))):
        match = row.find(text)
        if match is not None:
            return row, match
    return None


def cause_of(text: str) -> str:
    """Give the cause that an agent's own words name, else `unknown`."""
    return next((row.cause for row in _OF_AGENT if row.find(text)), "unknown")


def row_of_exception(kind: str, text: str, traceback: str = "") -> Row | None:
    """Find the row that the exception of a rank fits; of a mismatch with the cause that all of its text tells."""
    line = _one_line(kind, text)
    fitting = (r for r in (*site.rows(), *_OF_EXCEPTIONS) if r.find(line) and r.fits_traceback(traceback))
    row = next(fitting, None)
    if row is None or row.id != "mismatch":
        return row
    cause, confidence = compare_calls(text[:ENOUGH])
    return replace(row, cause=cause, confidence=confidence)


def row_by_words(kind: str, text: str, traceback: str = "") -> Row | None:
    """Find what the words of an exception mean that no row knows (`vocabulary`)."""
    line = _one_line(kind, text)[:TOLD]
    rows = (*vocabulary.OF_TRACE, *vocabulary.ROWS)
    return next((row for row in rows if row.find(line) and row.fits_traceback(traceback)), None)


def lost_peer(kind: str, text: str) -> str | None:
    """Find the row of torch's transports that speaks of a peer: `raised.GONE`, `raised.AWAITED`, or None."""
    line = _one_line(kind, text)
    return next((row.id for row in _OF_PEERS if row.find(line)), None)


TOLD = 400  # characters of it that say what is wrong: further on it quotes and advises
ENOUGH = 4096  # characters of an exception's text that are looked at
_OF_AGENT = tuple(row for row in ROWS if Scope.AGENT in row.scope)
_OF_EXCEPTIONS = tuple(row for row in ROWS if Scope.EXCEPTION in row.scope and row.role is Sign.ROOT)
_OF_PEERS = tuple(row for row in ROWS if Scope.EXCEPTION in row.scope and row.role is Sign.CASCADE)


def _one_line(kind: str, text: str) -> str:
    return " ".join(f"{kind}: {text[:ENOUGH]}".split())
