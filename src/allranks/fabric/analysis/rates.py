"""algbw and busbw from a payload and times, and their comparison with a link's nominal rate (pure).

algbw = S / t. busbw = algbw × a factor that makes collectives and numbers of ranks comparable with a link's rate, as
nccl-tests has it (doc/PERFORMANCE.md). S is a rank's payload; for collectives that split a buffer into a block a rank,
the whole buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allranks.text import format_rate, format_size_option, format_time

from ..metric_rows import BandwidthRow

SPLIT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
UNSPLIT = ("broadcast", "reduce", "sendrecv")


@dataclass(frozen=True)
class NominalLink:
    """The link that a rank's traffic takes: its rate in bytes a second, 0 where `what` says why it is not known."""

    what: str
    rate: float


def busbw_factor(collective: str, ranks: int) -> float:
    """Give busbw / algbw; raise ValueError for a collective without a factor."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in SPLIT:
        return (ranks - 1) / ranks
    if collective in UNSPLIT:
        return 1.0
    raise ValueError(f"no factor for {collective}")


def quantile(values: Sequence[float], share: float) -> float:
    """Interpolate between the two nearest values, as most tools do."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def bandwidth_row(collective: str, size: int, ranks: int, seconds: Sequence[float]) -> BandwidthRow:
    """Make the row of a size from the seconds of its rounds."""
    median = quantile(seconds, 0.5)
    algbw = size / median
    busbw = algbw * busbw_factor(collective, ranks)
    quartiles = quantile(seconds, 0.25), quantile(seconds, 0.75)
    return BandwidthRow(collective, size, ranks, median, *quartiles, algbw, busbw, len(seconds))


def bandwidth_line(row: BandwidthRow) -> str:
    """Write `all_reduce       64MB  12.3 ms (11.9 ms to 13.1 ms)   algbw 5.2 GB/s   busbw 7.8 GB/s`."""
    times = f"{format_time(row.median)} ({format_time(row.q1)} to {format_time(row.q3)})"
    rates = f"algbw {format_rate(row.algbw):>9}   busbw {format_rate(row.busbw):>9}"
    return f"{row.collective:<15} {format_size_option(row.size):>9}  {times:<30} {rates}"


def compare_with_link(best: BandwidthRow, links: Sequence[NominalLink], nodes: Sequence[int]) -> str:
    """Compare the best bus bandwidth with the slowest link; `links` and `nodes` by rank.

    Rank 0's way to MASTER_ADDR, its own address, is the loopback: with several nodes the others' links count.
    """
    text = f"best busbw of {best.collective}: {format_rate(best.busbw)} at {format_size_option(best.size)}"
    if len(set(nodes)) < 2:
        return f"{text}. All ranks are on one node, so it is without a link between nodes"
    others = [link for link, node in zip(links, nodes) if node != nodes[0]]
    slowest = min(others, key=lambda link: link.rate)
    if not slowest.rate:
        return f"{text}, without a nominal rate to compare it with ({slowest.what})"
    return f"{text}, {best.busbw / slowest.rate:.0%} of the nominal {format_rate(slowest.rate)} of {slowest.what}"
