"""Durations and sizes as people write them: `500ms`, `8s`, `10m`, `2h`, `1d`, `1h30m`; `64KB`, `1.5GB`.

A bare number is seconds or bytes. Sizes are binary, as people who train mean them (torch's bucket sizes
too): 1 KB = 1 KiB = 1024 bytes, 1 MB = 1024 KB, and so on.
"""

from __future__ import annotations

import math
import re

from ..cluster.names import show
from ..errors import UsageError

MAX_DURATION = 366 * 86400.0
MAX_SIZE = 2**63 - 1
_MAX_TEXT = 40
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_BARE = re.compile(_NUMBER)
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in _SECONDS))
_SIZE = re.compile(rf"({_NUMBER})[ ]?(?:([KMGT])(?:I?B)?|B)?", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}
WANT_DURATION = "a duration such as 500ms, 8s, 10m, 2h or a number of seconds"
WANT_SIZE = "a size such as 64KB, 256MB, 1GB or a number of bytes"


def duration_of(value: object) -> float:
    """Seconds; ValueError, whose text says what to set, where `value` is no duration."""
    seconds = _number(value, WANT_DURATION) if not isinstance(value, str) else _duration_text(value)
    if not 0 <= seconds <= MAX_DURATION:
        raise ValueError(f"{WANT_DURATION}, from 0 to {MAX_DURATION / 86400:.0f}d")
    return float(seconds)


def size_of(value: object) -> int:
    """Bytes; ValueError, whose text says what to set, where `value` is no size."""
    number = _number(value, WANT_SIZE) if not isinstance(value, str) else _size_text(value)
    if not 0 <= number <= MAX_SIZE:
        raise ValueError(f"{WANT_SIZE}, below 8 exabytes")
    return int(number)


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


def format_duration(seconds: float) -> str:
    """`90.0` as `1m30s`, `0.25` as `250ms`; `parse_duration` reads it back to the millisecond."""
    if not 0 <= seconds <= MAX_DURATION:
        return f"{seconds}s"
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    if milliseconds:
        parts.append(f"{milliseconds / 1000:.3f}".rstrip("0").rstrip(".") + "s")
    return "".join(parts)


def format_size(size: int) -> str:
    """`65536` as `64KB`, `1610612736` as `1.5GB`; two decimals at most."""
    for unit, power in (("TB", 4), ("GB", 3), ("MB", 2), ("KB", 1)):
        if abs(size) >= 1024**power:
            return f"{size / 1024**power:.2f}".rstrip("0").rstrip(".") + unit
    return f"{size}B"


def _number(value: object, want: str) -> float | int:
    """A number that is no bool; the bounds above refuse NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(want)
    return value


def _duration_text(text: str) -> float:
    text = text.strip(" \t")
    if len(text) > _MAX_TEXT or not text:
        raise ValueError(WANT_DURATION)
    if _BARE.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if not match:
        raise ValueError(WANT_DURATION)
    return math.fsum(float(number) * _SECONDS[unit] for unit, number in match.groupdict().items() if number)


def _size_text(text: str) -> float | int:
    text = text.strip(" \t")
    match = _SIZE.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if not match:
        raise ValueError(WANT_SIZE)
    factor: int = 1024 ** _POWERS.get((match[2] or "").upper(), 0)
    return float(match[1]) * factor if "." in match[1] else int(match[1]) * factor
