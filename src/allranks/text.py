"""Word lists, groups, ranges, counts, sizes and durations: the only place (pure, Python 3.8).

Sizes are binary, as people who train mean them (torch's bucket sizes too): 1 KB is 1024 bytes. `parse_duration` and
`parse_size` read what people type and raise ValueError whose text says what to set; `format_duration` and
`format_size` write what they read.
"""

from __future__ import annotations

import math
import re
from typing import (
    Callable,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Match,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

from allranks.protocol.jsontext import Json

Item = TypeVar("Item")
Value = TypeVar("Value")

MAX_DURATION = 366 * 86400.0  # seconds
MAX_SIZE = 2**63 - 1  # bytes
MAX_TYPED = 40  # characters of a duration or size
EXPECTED_DURATION = "a duration such as 500ms, 8s, 10m, 2h or a number of seconds"
EXPECTED_SIZE = "a size such as 64KB, 256MB, 1GB or a number of bytes"
NAMES_SHOWN = 4

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "bare": 1.0}
_DURATION = "".join(r"(?:(?P<%s>%s)%s)?" % (unit, _NUMBER, unit) for unit in _SECONDS if unit != "bare")
_DURATION += r"|(?P<bare>%s)" % _NUMBER
_BYTES = {"T": 1 << 40, "G": 1 << 30, "M": 1 << 20, "K": 1 << 10, "B": 1}
_SIZE = "(?i)" + "".join(r"(?P<%s>%s)[ ]?%s(?:I?B)?|" % (unit, _NUMBER, unit) for unit in "TGMK")
_SIZE += r"(?P<B>%s)[ ]?B?" % _NUMBER


# -- lists ---------------------------------------------------------------------------------------------


def join_words(words: Sequence[str], conjunction: str = "and", limit: int = 0) -> str:
    """Join words as a sentence does: `h1, h2 and h3`; beyond `limit` words (0: none) `h1, h2 and 7 more`."""
    listed = list(words)
    if limit and len(listed) > limit:
        hidden = len(listed) - limit + 1
        listed = [*listed[: limit - 1], "%d more" % hidden]
    if len(listed) < 2:
        return "".join(listed)
    return "%s %s %s" % (", ".join(listed[:-1]), conjunction, listed[-1])


def list_first(words: Sequence[str], most: int) -> str:
    """List the first words, and say how many there are: `h1, h2, … 10 in all`."""
    listed = ", ".join(words[:most])
    if len(words) > most:
        return "%s, … %d in all" % (listed, len(words))
    return listed


def join_names(names: Sequence[str]) -> str:
    """Join names of nodes, of many only the first: `h1, h2, h3 and 7 more`."""
    return join_words(names, limit=NAMES_SHOWN)


def format_ranges(numbers: Iterable[int]) -> str:
    """Write numbers as ranges: `0-3,7`."""
    return ",".join("%d" % low if low == high else "%d-%d" % (low, high) for low, high in ranges(numbers))


def read_ranges(text: str) -> Set[int]:
    """Read what `format_ranges` writes, and what the kernel writes of CPUs; raise ValueError."""
    numbers: Set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        numbers.update(range(int(low), int(high or low) + 1))
    return numbers


def ranges(numbers: Iterable[int]) -> List[Tuple[int, int]]:
    """Give runs of consecutive numbers, each by its lowest and highest."""
    runs: List[Tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def format_ranks(ranks: Collection[int]) -> str:
    """Name ranks: `rank 2`, `ranks 0-3,7`."""
    return "%s %s" % (plural(len(ranks), "rank"), format_ranges(ranks))


def group(items: Iterable[Item], key: Callable[[Item], Value]) -> Dict[Value, List[Item]]:
    """Give items by a value of theirs, in the order in which the values come."""
    groups: Dict[Value, List[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def plural(count: int, one: str, many: str = "") -> str:
    """Choose a noun's or a verb's form; `many` defaults to the noun with an s."""
    if count == 1:
        return one
    return many or one + "s"


def count_of(count: int, one: str, many: str = "") -> str:
    """Write a number with its noun: `1 rank`, `3 ranks`."""
    return "%d %s" % (count, plural(count, one, many))


def name_with(name: str, detail: str) -> str:
    """Write a name with a detail behind it, `h1 (10.0.0.1)`; the name alone where the detail says nothing more."""
    if not name:
        return detail or "?"
    return "%s (%s)" % (name, detail) if detail not in ("", name) else name


def with_reason(sentence: str, reason: str) -> str:
    """Write a sentence with its reason behind a colon; the sentence alone where no reason is known."""
    return "%s: %s" % (sentence, reason) if reason.strip() else sentence


def format_choice(most: int) -> str:
    """Write how many may be set: `from 1 to 4`, or the only number."""
    return "from 1 to %d" % most if most > 1 else "1"


def cut(text: str, limit: int) -> str:
    """Shorten a text to `limit` characters; an ellipsis says so."""
    if len(text) <= limit:
        return text
    return text[: limit - 1].rstrip() + "…"


def align_columns(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> Sequence[str]:
    """Write rows of cells in columns: to the left at these positions, to the right at the others."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[at].ljust(width) if at in left else row[at].rjust(width) for at, width in enumerate(widths)]
        lines.append("  ".join(cells).rstrip())
    return lines


def one_line(text: str, limit: int) -> str:
    """Put foreign words on one line, shortened to `limit` characters; what is none to read is a blank."""
    return cut("".join(char if char.isprintable() else " " for char in text[: limit + 1]), limit)


def first_line(text: str, limit: int) -> str:
    """Give the first line that is not blank, shortened to `limit` characters."""
    for line in text.splitlines():
        if line.strip():
            return cut(line.strip(), limit)
    return ""


def error_line(error: BaseException) -> str:
    """Give the first line of what an error says, shortened; its type where it says nothing."""
    return first_line(str(error), 300) or type(error).__name__


# -- figures -------------------------------------------------------------------------------------------


def format_number(value: float) -> str:
    """Write a figure with three digits, never with an exponent."""
    if abs(value) >= 99.5:
        return "%.0f" % value
    return "%.3g" % value


def format_percent(share: float) -> str:
    """Write a share of 1: `8 %`; a small share that is not zero is `under 1 %`."""
    if 0 < share < 0.0095:
        return "under 1 %"
    return "%.0f %%" % (100 * share)


def format_size(size: float) -> str:
    """Write bytes for a sentence: `64 KB`, `1.5 GB`, with two decimals at most."""
    for unit, power in (("TB", 4), ("GB", 3), ("MB", 2), ("KB", 1)):
        if abs(size) >= 1024**power:
            return "%s %s" % (_trim("%.2f" % (size / 1024**power)), unit)
    return "%d B" % size


def format_size_option(size: int) -> str:
    """Write bytes as one word of a command line: `64KB`."""
    return format_size(size).replace(" ", "")


def format_rate(rate: float) -> str:
    """Write bytes a second as collectives are rated: `850 MB/s`, `12.3 GB/s`; here 1 GB is 10^9 bytes."""
    return _decimal(rate, ("B/s", "KB/s", "MB/s", "GB/s"))


def format_bit_rate(rate: float) -> str:
    """Write bytes a second as networks are rated: `49 Mbit/s`, `9.4 Gbit/s`."""
    return _decimal(8 * rate, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"))


def _decimal(value: float, units: Sequence[str]) -> str:
    power = 0
    while value >= 999.5 and power < len(units) - 1:
        value /= 1000
        power += 1
    return "%s %s" % (format_number(value), units[power])


def format_time(seconds: float) -> str:
    """Write a measured time: `85 µs`, `50.3 ms`, `1.2 s`."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return "%s µs" % format_number(seconds * 1e6)
    if seconds < 0.9995:
        return "%s ms" % format_number(seconds * 1e3)
    return "%s s" % format_number(seconds)


def format_elapsed(seconds: float) -> str:
    """Write how long something took: `0.35 s`, `12.1 s`, `3 min 5 s`, `9 h 12 min`."""
    if seconds < 1:
        return "%.2f s" % seconds
    if seconds < 59.95:
        return "%.1f s" % seconds
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return "%d min %d s" % (minutes, rest)
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return "%d h %d min" % (hours, minutes)
    return "%d d %d h" % (hours // 24, hours % 24)


def format_ago(seconds: float) -> str:
    """Write how long ago something was: `40 s ago`, `3 days ago`."""
    for length, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * length:
            return "%.0f %s ago" % (seconds / length, unit)
    return "%.0f s ago" % max(0.0, seconds)


def format_duration(seconds: float) -> str:
    """Write a setting: `1m30s`, `250ms`; `parse_duration` reads it back to the millisecond.

    Below a second it is read back to the microsecond: the longest round trip of a link is often less than `1ms`.
    """
    if not 0 <= seconds <= MAX_DURATION:
        return "%ss" % seconds
    microseconds = round(seconds * 1_000_000)
    if microseconds < 1_000_000 and microseconds % 1000:
        return "%dus" % microseconds
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return "%dms" % milliseconds if milliseconds else "0s"
    parts = []
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        count, milliseconds = divmod(milliseconds, length)
        if count:
            parts.append("%d%s" % (count, unit))
    if milliseconds:
        parts.append("%ss" % _trim("%.3f" % (milliseconds / 1000)))
    return "".join(parts)


def _trim(decimal: str) -> str:
    return decimal.rstrip("0").rstrip(".") if "." in decimal else decimal


# -- what people type ----------------------------------------------------------------------------------


def parse_duration(value: Json) -> float:
    """Read seconds from a number or a text such as `1h30m`; raise ValueError that says what to set."""
    seconds = _read_number(value, re.fullmatch(_DURATION, _typed(value)), _SECONDS, EXPECTED_DURATION)
    if not 0 <= seconds <= MAX_DURATION:  # nor NaN
        raise ValueError("%s, from 0 to %.0fd" % (EXPECTED_DURATION, MAX_DURATION / 86400))
    return float(seconds)


def parse_size(value: Json) -> int:
    """Read bytes from a number or a text such as `1.5GB`; raise ValueError that says what to set."""
    size = _read_number(value, re.fullmatch(_SIZE, _typed(value)), _BYTES, EXPECTED_SIZE)
    if not 0 <= size <= MAX_SIZE:
        raise ValueError("%s, below 8 exabytes" % EXPECTED_SIZE)
    return int(size)


def _typed(value: Json) -> str:
    text = value.strip(" \t") if isinstance(value, str) else ""
    return text if len(text) <= MAX_TYPED else ""


def _read_number(value: Json, match: Optional[Match[str]], units: Mapping[str, float], expected: str) -> float:
    """Take a number, or the sum of what a text has of each unit. The groups of a match are the units."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if match is None or not match[0]:
        raise ValueError(expected)
    parts = []
    for unit, number in match.groupdict().items():
        if number:
            parts.append((float(number) if "." in number else int(number)) * units[unit])
    return parts[0] if len(parts) == 1 else math.fsum(parts)  # a single one stays a whole number, however large
