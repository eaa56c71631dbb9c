"""algbw and busbw from a payload and a time. Pure.

algbw = S / t. busbw = algbw × a factor that makes collectives and numbers of ranks comparable with a link's rate.
S is a rank's payload; for collectives that split a buffer into a block a rank, the whole buffer, all blocks.
"""

from __future__ import annotations

SPLIT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
WHOLE = ("broadcast", "reduce", "sendrecv")


def factor(collective: str, ranks: int) -> float:
    """busbw / algbw."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in SPLIT:
        return (ranks - 1) / ranks
    if collective in WHOLE:
        return 1.0
    raise ValueError(f"no factor for {collective}")


def quantile(values: list[float], part: float) -> float:
    """Between the two nearest values, as most tools do it."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def rates(collective: str, size: int, ranks: int, seconds: list[float]) -> dict[str, float]:
    """Median, quartiles (seconds) and both bandwidths (bytes a second) of some rounds."""
    median = quantile(seconds, 0.5)
    algbw = size / median
    return {
        "median": median,
        "q1": quantile(seconds, 0.25),
        "q3": quantile(seconds, 0.75),
        "algbw": algbw,
        "busbw": algbw * factor(collective, ranks),
    }
