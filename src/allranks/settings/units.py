"""Durations and sizes of options: `allranks.text` reads them, and here an option's name goes into the message."""

from __future__ import annotations

from ..cluster.names import show
from ..errors import UsageError
from ..text import EXPECTED_DURATION as WANT_DURATION
from ..text import EXPECTED_SIZE as WANT_SIZE
from ..text import parse_duration as duration_of
from ..text import parse_size as size_of

__all__ = ["WANT_DURATION", "WANT_SIZE", "duration_of", "parse_duration", "parse_size", "size_of"]


def parse_duration(value: object, what: str) -> float:
    """Seconds; `what` names the option for the message."""
    try:
        return duration_of(value)
    except ValueError as error:
        raise UsageError(f"{what}: found {show(value)}, set {error}") from None


def parse_size(value: object, what: str) -> int:
    """Bytes; `what` names the option for the message."""
    try:
        return size_of(value)
    except ValueError as error:
        raise UsageError(f"{what}: found {show(value)}, set {error}") from None
