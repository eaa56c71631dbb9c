"""Payloads from 1 KB up to the largest: all_reduce, all_gather and gather to rank 0, every element checked."""

from __future__ import annotations

import torch.distributed as dist

from ..lab import Lab, Test
from ..sizes import say_size, sweep

QUICK = 4 << 20
WIDTH = 4  # bytes of a float32


def large_payloads(lab: Lab) -> str:
    """Each size has a limit of its own."""
    sizes = [min(QUICK, lab.size)] if lab.quick else sweep(lab.size)
    for turn, size in enumerate(sizes):
        if turn:
            lab.renew(say_size(size))
        _all_reduce(lab, turn, size)
        _all_gather(lab, turn, size)
        _gather(lab, turn, size)
        lab.payloads.append(size)
    lab.use("float32")
    return f"{' '.join(map(say_size, sizes))} a rank"


def _all_reduce(lab: Lab, turn: int, size: int) -> None:
    buffer = lab.give_shared(turn, max(1, size // WIDTH), "float32", lab.world)
    lab.arrive(turn)
    dist.all_reduce(buffer)
    lab.check_sum(buffer, lab.everyone, turn, "float32")


def _all_gather(lab: Lab, turn: int, size: int) -> None:
    """The blocks of all ranks together have the size."""
    count = max(1, size // WIDTH // lab.world)
    own = lab.give_moved(turn, count, "float32")
    blocks = [lab.empty(count, "float32") for _ in lab.everyone]
    lab.arrive(turn)
    dist.all_gather(blocks, own)
    for source, block in enumerate(blocks):
        lab.check_moved(block, source, turn, "float32")


def _gather(lab: Lab, turn: int, size: int) -> None:
    count = max(1, size // WIDTH // lab.world)
    own = lab.give_moved(turn + 1, count, "float32")
    blocks = [lab.empty(count, "float32") for _ in lab.everyone] if lab.rank == 0 else None
    lab.arrive(turn)
    dist.gather(own, blocks, 0)
    for source, block in enumerate(blocks or []):
        lab.check_moved(block, source, turn + 1, "float32")


PAYLOADS = (Test("large_payloads", large_payloads),)
