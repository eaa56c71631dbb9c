"""Collectives with one whole buffer: barrier, all_reduce, broadcast, reduce."""

from __future__ import annotations

import time

import torch.distributed as dist

from .. import data
from ..lab import Lab, NotSupported, Test

COUNTS = (1, 1000, 65537)
PAUSE = 0.05  # seconds by which one rank comes later to a barrier


def counts_of(lab: Lab) -> tuple[int, ...]:
    """How many elements, of a test that is repeated with several."""
    return COUNTS[1:2] if lab.quick else COUNTS


def barrier(lab: Lab) -> str:
    """Nobody leaves before everybody has come: marks in the store show it."""
    turns = 2 if lab.quick else 5
    for turn in range(turns):
        if turn % lab.world == lab.rank and turn:
            time.sleep(PAUSE)
        lab.arrive(turn)
        lab.job.store.set(f"barrier/{turn}/{lab.rank}", "1")
        lab.job.store.get(f"barrier/{turn}/{lab.rank}")  # set does not wait until the store has it
        lab.barrier()
        absent = [r for r in lab.everyone if not lab.job.store.check([f"barrier/{turn}/{r}"])]
        if absent:
            lab.note(turn, "barrier", absent[0], f"rank {absent[0]} to have come", "that it had not", source=absent[0])
    return f"{turns} rounds"


def summed(lab: Lab) -> list[str]:
    """Types in which the sum over all ranks is exact."""
    exact = [dtype for dtype in ("float32", "int64", "bfloat16") if data.modulus_of(dtype, lab.world)]
    if "bfloat16" not in exact:
        lab.leave_out(f"sums in bfloat16: not exact over {lab.world} ranks")
    return exact


def all_reduce(lab: Lab) -> str:
    """Sum and maximum, each element known."""
    done = []
    for dtype in summed(lab):
        try:
            with lab.where_supported(f"all_reduce of {dtype}"):
                _all_reduce(lab, dtype)
            done.append(dtype)
        except NotSupported as error:
            if dtype != "bfloat16":
                raise
            lab.leave_out(str(error))
    return f"sum max  {lab.use(*done)}"


def _all_reduce(lab: Lab, dtype: str) -> None:
    for turn, count in enumerate(counts_of(lab)):
        buffer = lab.give_shared(turn, count, dtype, lab.world)
        lab.arrive(turn)
        dist.all_reduce(buffer)
        lab.check_sum(buffer, lab.everyone, turn, dtype)
        buffer = lab.give_shared(turn, count, dtype, lab.world)
        dist.all_reduce(buffer, dist.ReduceOp.MAX)
        lab.check_max(buffer, lab.everyone, turn, dtype)


def broadcast(lab: Lab) -> str:
    """Roots in turn; the others' buffers hold zeros before."""
    roots = data.roots(lab.world)
    for turn, root in enumerate(roots):
        for dtype in ("float32", "int64"):
            count = COUNTS[turn % len(COUNTS)]
            buffer = lab.give_moved(turn, count, dtype) if lab.rank == root else lab.empty(count, dtype)
            lab.arrive(turn)
            dist.broadcast(buffer, root)
            lab.check_moved(buffer, root, turn, dtype)
    return f"{len(roots)} roots  {lab.use('float32', 'int64')}"


def reduce(lab: Lab) -> str:
    """Roots in turn; only the root's buffer is defined afterwards."""
    roots = data.roots(lab.world)
    for turn, root in enumerate(roots):
        for dtype in ("float32", "int64"):
            buffer = lab.give_shared(turn, COUNTS[turn % len(COUNTS)], dtype, lab.world)
            lab.arrive(turn)
            dist.reduce(buffer, root)
            lab.settle()
            if lab.rank == root:
                lab.check_sum(buffer, lab.everyone, turn, dtype)
    return f"{len(roots)} roots  {lab.use('float32', 'int64')}"


SIMPLE = (
    Test("barrier", barrier),
    Test("all_reduce", all_reduce),
    Test("broadcast", broadcast),
    Test("reduce", reduce),
)
