"""The answer in one sentence, and the words for times, sizes and collectives (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from .collectives import Kind
from .measure import Group, Overlap

LITTLE = 0.05  # of a step: communication in the open that isn't worth work
MOSTLY = 0.5  # of communication, hidden
HARDLY = 0.2
MUCH_IDLE = 0.25  # of a step
WAITING = 0.5  # of what is in the open: the ranks differ more than the network costs
CHIEFLY = 0.6  # of all that was waited for, because of one rank


def verdict(found: Overlap) -> str:
    """Whether communication is hidden, what stands in the open, and why, where that can be seen."""
    mean = found.mean
    if not found.steps:
        return "Nothing was traced in any step: neither computation nor communication."
    if mean.hidden is None:
        return ("No communication was traced: there is one rank, or the profiler ran while none took place"
                + _idle(found) + ".")  # fmt: skip
    share = mean.exposed / mean.seconds if mean.seconds else 0.0
    if share < LITTLE:
        head = "Communication is hidden" if mean.hidden >= MOSTLY else "Communication costs little"
    else:
        part = "mostly" if mean.hidden >= MOSTLY else "partly" if mean.hidden >= HARDLY else "hardly"
        head = f"Communication is {part} hidden"
    step = "a step of" if any(w.number is not None for r in found.ranks for w in r.trace.windows) else "a trace of"
    text = (
        f"{head}: of {say_time(mean.communicating)} in {step} {say_time(mean.seconds)}, computation covers "
        f"{percent(mean.hidden)}, and {say_time(mean.exposed)} ({percent(share)} of the time) stands in the open"
    )
    if share >= LITTLE:
        text += _most(found.groups) + _waiting(found)
    return text + _idle(found) + "."


def _most(groups: Sequence[Group]) -> str:
    total = sum(group.exposed for group in groups)
    return f", {percent(groups[0].exposed / total)} of it {say_kind(groups[0].kind)}" if total > 0 else ""


def _waiting(found: Overlap) -> str:
    """Where the network isn't what takes the time."""
    exposed, waited = (sum(getattr(g, name) for g in found.groups) for name in ("exposed", "waiting"))
    if not exposed or waited < WAITING * exposed:
        return ""
    last, seconds = max(found.waited_for.items(), key=lambda rank: rank[1])
    whom = last if seconds >= CHIEFLY * waited and len(found.ranks) > 1 else "whichever rank is last"
    return f", and {percent(waited / exposed)} of it is waiting for {whom}, not transfer"


def _idle(found: Overlap) -> str:
    mean = found.mean
    if not mean.seconds or mean.idle < MUCH_IDLE * mean.seconds:
        return ""
    share = percent(mean.idle / mean.seconds)
    if any(rank.trace.device == "gpu" for rank in found.ranks):
        return f"; for {share} of the time the GPU is idle: look first at the input, and at what the CPU does"
    return f"; for {share} of the time no operator runs: Python itself, or a wait for input"


def percent(part: float | None) -> str:
    """`0.084` as `8 %`."""
    if part is None:
        return ""
    return f"{100 * part:.0f} %" if part >= 0.0095 or part <= 0 else "under 1 %"


def say_time(seconds: float) -> str:
    """`0.0123` as `12.3 ms`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{_three(seconds * factor)} {unit}"
    return f"{_three(seconds * 1e6)} µs" if seconds > 0 else "0"


def _three(value: float) -> str:
    """Three digits, and never an exponent where there are more."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"


def say_bytes(size: int | None) -> str:
    """`65536` as `64 KB`; 1 KB is 1024 bytes."""
    if size is None:
        return "size unknown"
    for unit, power in (("GB", 3), ("MB", 2), ("KB", 1)):
        if size >= 1024**power:
            return f"{_three(size / 1024**power)} {unit}"
    return f"{size} B"


def say_kind(kind: Kind) -> str:
    """`all_gather of 401 KB in mesh_shard`."""
    size = f" of {say_bytes(kind.size)}" if kind.size is not None else ""
    return f"{kind.name}{size}" + (f" in {kind.group}" if kind.group else "")
