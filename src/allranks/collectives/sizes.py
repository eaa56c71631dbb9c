"""Sizes, durations and memory: read as people write them, and said back the same way. Pure."""

from __future__ import annotations

import re

UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
SMALLEST = 1 << 10
GROWTH = 16
COPIES = 3  # of a payload that a rank holds at once: what it gives, what it gets, what the backend keeps
USABLE = 0.8  # of the memory that is available


def parse_size(text: str) -> int:
    """`256MB` in bytes; a bare number is bytes."""
    number, unit = _split(text)
    if unit.upper() not in UNITS:
        raise ValueError(f"a size such as 64KB, 256MB, 1GB or a number of bytes, not {text!r}")
    return int(float(number) * UNITS[unit.upper()])


def parse_seconds(text: str) -> float:
    """`500ms`, `8s`, `10m`, `2h`; a bare number is seconds."""
    number, unit = _split(text)
    if unit not in SECONDS:
        raise ValueError(f"a duration such as 500ms, 8s, 10m or a number of seconds, not {text!r}")
    return float(number) * SECONDS[unit]


def _split(text: str) -> tuple[str, str]:
    found = NUMBER.fullmatch(text.strip())
    if not found:
        raise ValueError(f"a number with a unit, not {text!r}")
    return found.group(1), found.group(2)


def say_size(count: int) -> str:
    """`65536` as `64KB`."""
    for unit in ("TB", "GB", "MB", "KB"):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.2f}".rstrip("0").rstrip(".") + unit
    return f"{count}B"


def sweep(largest: int) -> list[int]:
    """1 KB, then 16 times as much each time, and the largest itself."""
    sizes = []
    size = SMALLEST
    while size < largest:
        sizes.append(size)
        size *= GROWTH
    return [*sizes, largest]


def available(meminfo: str) -> int | None:
    """MemAvailable of /proc/meminfo's text, in bytes; None where it does not say."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(found.group(1)) << 10 if found else None


def within(free: int | None, limit: str, used: str) -> int | None:
    """What a control group leaves of the free memory, from the texts of its limit and its use, in bytes."""
    if not (limit.strip().isdigit() and used.strip().isdigit()):
        return free
    left = max(0, int(limit) - int(used))
    return left if free is None else min(free, left)


def needed(size: int, ranks_here: int) -> int:
    """What payloads of this size take on a node with so many ranks."""
    return size * COPIES * ranks_here


def fits(size: int, ranks_here: int, free: int | None) -> bool:
    """Whether a node has the memory; where it can't be read, yes."""
    return free is None or needed(size, ranks_here) <= free * USABLE


def fitting(size: int, ranks_here: int, free: int | None) -> int:
    """The largest payload that a node has memory for: the size itself, or half of it as often as it takes."""
    while size > SMALLEST and not fits(size, ranks_here, free):
        size //= 2
    return max(size, 1)


def refusal(size: int, ranks_here: int, free: int | None, where: str) -> str:
    """Why a payload is refused, in one sentence."""
    have = "an unknown amount" if free is None else say_size(free)
    need, how = say_size(needed(size, ranks_here)), "ranks need" if ranks_here != 1 else "rank needs"
    return f"{say_size(size)} refused: {ranks_here} {how} {need} of memory on {where}, which has {have} available"
