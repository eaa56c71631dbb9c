"""How large payloads are, and whether a node has the memory for them (pure). Sizes are bytes."""

from __future__ import annotations

import re

from allranks.text import count_of, format_size_option, plural

SMALLEST = 1 << 10
COPIES = 3  # of a payload that a rank holds at once: what it gives, what it gets, what the backend keeps
USABLE = 0.8  # of the memory that is available


def payload_sizes(largest: int, growth: int) -> list[int]:
    """List 1 KB, `growth` times as much each time, and the largest itself."""
    sizes = []
    size = SMALLEST
    while size < largest:
        sizes.append(size)
        size *= growth
    return [*sizes, largest]


def available_memory(meminfo: str) -> int | None:
    """Read MemAvailable from /proc/meminfo's text; None where it does not say."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    if match is None:
        return None
    return int(match.group(1)) << 10


def within_group(free: int | None, limit: str, used: str) -> int | None:
    """Bound the free memory by what a control group leaves, from the texts of its limit and its use."""
    if not (limit.strip().isdecimal() and used.strip().isdecimal()):
        return free
    left = max(0, int(limit) - int(used))
    if free is None:
        return left
    return min(free, left)


def fits(size: int, ranks: int, free: int | None) -> bool:
    """Tell whether so many ranks of a node have the memory for a payload; yes where the free memory is not known."""
    return free is None or size * COPIES * ranks <= free * USABLE


def largest_fitting(size: int, ranks: int, free: int | None) -> int:
    """Give the largest payload that a node has memory for: the size, or half of it as often as it takes."""
    while size > SMALLEST and not fits(size, ranks, free):
        size //= 2
    return max(size, 1)


def refusal(size: int, ranks: int, free: int | None, where: str) -> str:
    """Write why a payload is refused, in one sentence."""
    have = "an unknown amount"
    if free is not None:
        have = format_size_option(free)
    need = f"{count_of(ranks, 'rank')} {plural(ranks, 'needs', 'need')} {format_size_option(size * COPIES * ranks)}"
    return f"{format_size_option(size)} refused: {need} of memory on {where}, which has {have} available"
