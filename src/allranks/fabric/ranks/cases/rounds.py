"""Rounds: one collective on one buffer a rank, and the check of its result. The tests put them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist

from .. import contributions as data
from ..lab import Lab, LabGroup, NotSupported

COUNTS = (1, 1000, 65537)  # elements
DTYPES = ("float32", "int64")
# Torch's names for one collective, the newest first: some were renamed, and the old ones warn.
ALL_GATHER = ("all_gather_single", "all_gather_into_tensor")
REDUCE_SCATTER = ("reduce_scatter_single", "reduce_scatter_tensor")


def counts_of(lab: Lab) -> Sequence[int]:
    """Give the numbers of elements of a test that is repeated with several."""
    return lab.pick(COUNTS[1:2], COUNTS)


def rounds(counts: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """Give round, count and type: each count in each type."""
    for turn, count in enumerate(counts):
        for dtype in DTYPES:
            yield turn, count, dtype


def newest(*names: str) -> Callable[..., object]:
    """Find the first of these functions that this torch has; raise NotSupported where it has none."""
    for name in names:
        function: Callable[..., object] | None = getattr(dist, name, None)
        if function is not None:
            return function
    raise NotSupported(f"torch {torch.__version__} has no {names[-1]}")


def rooted_rounds(lab: Lab) -> Iterator[tuple[int, int, int, str]]:
    """Give round, root, count and type: ranks are the root in turn."""
    for turn, root in enumerate(data.roots(lab.world)):
        for dtype in DTYPES:
            yield turn, root, COUNTS[turn % len(COUNTS)], dtype


def ring(give: torch.Tensor, to: int, result: torch.Tensor, source: int) -> list[dist.P2POp]:
    """Send to one rank and receive from another, ready for `run_batch`."""
    return [dist.P2POp(dist.isend, give, to), dist.P2POp(dist.irecv, result, source)]


def run_batch(operations: list[dist.P2POp]) -> None:
    """Send and receive at once: NCCL would deadlock when every rank sends first."""
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def sum_round(lab: Lab, turn: int, count: int, dtype: str, group: LabGroup) -> None:
    """all_reduce, and the sum."""
    buffer = lab.give_shared(turn, count, dtype, len(group.ranks))
    lab.arrive(turn)
    dist.all_reduce(buffer, group=group.process_group)
    lab.check_sum(buffer, group, turn, dtype)


def gather_round(lab: Lab, turn: int, count: int, dtype: str) -> None:
    """gather to rank 0."""
    give = lab.give_moved(turn, count, dtype)
    blocks = []
    if lab.rank == 0:
        blocks = lab.empty_blocks(count, dtype, lab.everyone)
    lab.arrive(turn)
    dist.gather(give, blocks or None, 0)
    lab.check_blocks(blocks, turn, dtype, lab.everyone)


def all_gather_round(lab: Lab, turn: int, count: int, dtype: str, group: LabGroup) -> None:
    """all_gather to a buffer for each rank."""
    give = lab.give_moved(turn, count, dtype)
    blocks = lab.empty_blocks(count, dtype, group)
    lab.arrive(turn)
    dist.all_gather(blocks, give, group=group.process_group)
    lab.check_blocks(blocks, turn, dtype, group)


def broadcast_round(lab: Lab, turn: int, count: int, dtype: str, root: int, group: LabGroup) -> None:
    """broadcast from a root; the others' buffers hold zeros before."""
    buffer = lab.empty(count, dtype)
    if lab.rank == root:
        buffer = lab.give_moved(turn, count, dtype)
    lab.arrive(turn)
    dist.broadcast(buffer, root, group=group.process_group)
    lab.check_moved(buffer, root, turn, dtype)
