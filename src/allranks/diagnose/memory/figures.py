"""Reads the figures of an out-of-memory message, of any torch since 1.4 and of the kernel (pure).

Texts: torch's c10/cuda/CUDACachingAllocator.cpp (to 1.4 "cached", to 2.0 in parentheses, 2.1 "capacty", 2.2 on
with "Including non-PyTorch memory"), its XPU sibling, Linux mm/oom_kill.c and mm/memcontrol.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

UNITS = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(?<![\d.])(\d{1,20}(?:\.\d{1,20})?) (bytes|[KMGT]iB)"  # bounded: else a wall of digits takes seconds
_TEXTS = {
    "wanted": (rf"Tried to allocate (?:more than )?{_SIZE}",),
    "total": (rf"total capac(?:i)?ty of {_SIZE}", rf"{_SIZE} total capacity"),
    "free": (rf"of which {_SIZE} is free", rf"{_SIZE} free"),
    "ours": (rf"this process has {_SIZE} memory in use",),
    "allocated": (rf"allocated memory {_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated"),
    "idle": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "reserved": (rf"{_SIZE} reserved in total by PyTorch", rf"{_SIZE} cached"),
}
_FIGURES = {name: tuple(map(re.compile, texts)) for name, texts in _TEXTS.items()}
_GPU = re.compile(r"\bGPU (\d+)")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")


@dataclass(frozen=True)
class GpuMemory:
    """Bytes, None where the message does not say. `idle`: reserved by torch's allocator, and in no tensor."""

    wanted: int | None = None
    total: int | None = None
    free: int | None = None
    allocated: int | None = None
    idle: int | None = None
    gpu: int | None = None
    others: int = 0  # held by other processes
    pids: tuple[int, ...] = ()  # of processes that the message names


def read_gpu(text: str) -> GpuMemory | None:
    """Read the figures of a message; None where it has not even the size that was asked for."""
    text = text[:8192]
    figures = {name: _first(patterns, text) for name, patterns in _FIGURES.items()}
    if figures["wanted"] is None:
        return None
    idle = figures["idle"]
    if idle is None and figures["reserved"] is not None and figures["allocated"] is not None:
        idle = max(0, figures["reserved"] - figures["allocated"])
    gpu = _GPU.search(text)
    named = [(int(pid), _bytes(size, unit)) for pid, size, unit in _OTHER.findall(text)]
    return GpuMemory(
        figures["wanted"],
        figures["total"],
        free=figures["free"],
        allocated=figures["allocated"],
        idle=idle,
        gpu=int(gpu[1]) if gpu else None,
        others=_others(figures, named),
        pids=tuple(pid for pid, _ in named),
    )


def _others(figures: dict[str, int | None], named: list[tuple[int, int]]) -> int:
    """Compute the bytes that other processes hold.

    torch 2.1 to 2.3 name this process by its pid alone: the largest is taken for it.
    """
    total = figures["total"]
    free = figures["free"]
    ours = figures["ours"]
    if total is None or free is None:
        return 0
    if ours is None:
        ours = max((size for _, size in named), default=None)
    if ours is None:
        return 0
    return max(0, total - free - ours)


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    for pattern in patterns:
        match = pattern.search(text)
        if match:
            return _bytes(match[1], match[2])
    return None


def _bytes(size: str, unit: str) -> int:
    return int(float(size) * UNITS[unit])


def size(count: float) -> str:
    """Write bytes as torch does, shorter: `20 MiB`, `79.2 GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count >= UNITS[unit]:
            value = count / UNITS[unit]
            if value >= 100 or value == int(value):
                return f"{value:.0f} {unit}"
            return f"{value:.1f} {unit}"
    return f"{count:.0f} bytes"
