"""Collectives with a block a rank: gather, all_gather, reduce_scatter, all_to_all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..lab import Lab, NotSupported, Test
from .simple import counts_of

DTYPES = ("float32", "int64")


def newest(*names: str) -> Any:
    """The first of these functions that this torch has: some were renamed, and the old ones warn."""
    found = [getattr(dist, name) for name in names if hasattr(dist, name)]
    if not found:
        raise NotSupported(f"torch {torch.__version__} has no {names[-1]}")
    return found[0]


def all_gather_into(out: torch.Tensor, own: torch.Tensor) -> None:
    """all_gather into one tensor."""
    newest("all_gather_single", "all_gather_into_tensor")(out, own)


def reduce_scatter_from(out: torch.Tensor, whole: torch.Tensor) -> None:
    """reduce_scatter from one tensor."""
    newest("reduce_scatter_single", "reduce_scatter_tensor")(out, whole)


def gather(lab: Lab) -> str:
    """To rank 0, a buffer a rank."""
    for turn, count in enumerate(counts_of(lab)):
        for dtype in DTYPES:
            own = lab.give_moved(turn, count, dtype)
            blocks = [lab.empty(count, dtype) for _ in lab.everyone] if lab.rank == 0 else None
            lab.arrive(turn)
            dist.gather(own, blocks, 0)
            for source, block in enumerate(blocks or []):
                lab.check_moved(block, source, turn, dtype)
    return f"to rank 0  {lab.use(*DTYPES)}"


def all_gather(lab: Lab) -> str:
    """A buffer a rank."""
    for turn, count in enumerate(counts_of(lab)):
        for dtype in DTYPES:
            own = lab.give_moved(turn, count, dtype)
            blocks = [lab.empty(count, dtype) for _ in lab.everyone]
            lab.arrive(turn)
            dist.all_gather(blocks, own)
            for source, block in enumerate(blocks):
                lab.check_moved(block, source, turn, dtype)
    return lab.use(*DTYPES)


def all_gather_into_tensor(lab: Lab) -> str:
    """One buffer for all."""
    for turn, count in enumerate(counts_of(lab)):
        for dtype in DTYPES:
            own = lab.give_moved(turn, count, dtype)
            whole = lab.empty(count * lab.world, dtype)
            lab.arrive(turn)
            with lab.where_supported("all_gather_into_tensor"):
                all_gather_into(whole, own)
            for source in lab.everyone:
                lab.check_moved(whole[source * count : (source + 1) * count], source, turn, dtype)
    return lab.use(*DTYPES)


def reduce_scatter(lab: Lab) -> str:
    """From one buffer; each rank gets the sum of its own block."""
    for turn, count in enumerate(counts_of(lab)):
        for dtype in DTYPES:
            whole = lab.give_shared(turn, count * lab.world, dtype, lab.world)
            block = lab.empty(count, dtype)
            lab.arrive(turn)
            with lab.where_supported("reduce_scatter"):
                reduce_scatter_from(block, whole)
            lab.check_sum(block, lab.everyone, turn, dtype, shift=count * lab.rank)
    return f"sum  {lab.use(*DTYPES)}"


def all_to_all(lab: Lab) -> str:
    """all_to_all_single: blocks of equal size, then of sizes that differ by sender and receiver."""
    for turn, base in enumerate(counts_of(lab)):
        for dtype in DTYPES:
            lab.arrive(turn)
            _exchange(lab, turn, dtype, [[base] * lab.world for _ in lab.everyone])
    turn = len(counts_of(lab))
    uneven = [[1 + (3 * sender + 5 * receiver) % 17 for receiver in lab.everyone] for sender in lab.everyone]
    for dtype in DTYPES:
        lab.arrive(turn)
        _exchange(lab, turn, dtype, uneven)
    return f"equal and unequal blocks  {lab.use(*DTYPES)}"


def _exchange(lab: Lab, turn: int, dtype: str, counts: list[list[int]]) -> None:
    """`counts` by sender and receiver; a sender's buffer is one pattern, cut into the blocks."""
    mine, theirs = counts[lab.rank], [counts[sender][lab.rank] for sender in lab.everyone]
    given, got = lab.give_moved(turn, sum(mine), dtype), lab.empty(sum(theirs), dtype)
    with lab.where_supported("all_to_all_single"):
        dist.all_to_all_single(got, given, theirs, mine)
    start = 0
    for sender, count in enumerate(theirs):
        before = sum(counts[sender][: lab.rank])
        lab.check_moved(got[start : start + count], sender, turn, dtype, shift=before)
        start += count


BLOCKS = (
    Test("gather", gather),
    Test("all_gather", all_gather),
    Test("all_gather_into_tensor", all_gather_into_tensor),
    Test("reduce_scatter", reduce_scatter),
    Test("all_to_all", all_to_all),
)
