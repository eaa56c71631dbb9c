"""Collectives on tensors: every element of every result is checked."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from allranks.text import format_size_option

from .. import contributions as data
from ..job import is_set
from ..lab import Lab, NotSupported
from ..payload import repeated
from .rounds import (
    ALL_GATHER,
    DTYPES,
    REDUCE_SCATTER,
    all_gather_round,
    broadcast_round,
    counts_of,
    gather_round,
    newest,
    ring,
    rooted_rounds,
    rounds,
    run_batch,
    sum_round,
)

PAUSE = 0.05  # seconds by which one rank comes later to a barrier
QUICK_PAYLOAD = 4 << 20  # bytes
GROWTH = 16  # of payloads
WIDTH = 4  # bytes of a float32


def barrier(lab: Lab) -> str:
    """Prove by keys in the store that no rank leaves before every rank has come."""
    turns = lab.pick(2, 5)
    store = lab.job.store
    for turn in range(turns):
        if turn % lab.world == lab.rank and turn:
            time.sleep(PAUSE)
        lab.arrive(turn)
        store.set(f"barrier/{turn}/{lab.rank}", "1")
        store.get(f"barrier/{turn}/{lab.rank}")  # set does not wait until the store has it
        lab.barrier()
        absent = next((rank for rank in range(lab.world) if not is_set(store, f"barrier/{turn}/{rank}")), None)
        if absent is not None:
            lab.note(turn, "barrier", absent, f"rank {absent} to have come", "that it had not", source=absent)
    return f"{turns} rounds"


def all_reduce(lab: Lab) -> str:
    """Check sum and maximum."""
    tested = []
    for dtype in (*DTYPES, "bfloat16"):
        if not data.modulus_of(dtype, lab.world):
            lab.leave_out(f"sums in {dtype}: not exact over {lab.world} ranks")
            continue
        try:
            with lab.where_supported(f"all_reduce of {dtype}"):
                _all_reduce(lab, dtype)
            tested.append(dtype)
        except NotSupported as error:
            if dtype != "bfloat16":
                raise
            lab.leave_out(str(error))
    return f"sum max  {lab.use(*tested)}"


def _all_reduce(lab: Lab, dtype: str) -> None:
    for turn, count in enumerate(counts_of(lab)):
        sum_round(lab, turn, count, dtype, lab.everyone)
        buffer = lab.give_shared(turn, count, dtype, lab.world)
        dist.all_reduce(buffer, dist.ReduceOp.MAX)
        expected = data.reduced(max, lab.everyone.ranks, turn, lab.modulus(dtype, lab.world))
        lab.check(buffer, repeated(expected), turn, f"{dtype} max")


def broadcast(lab: Lab) -> str:
    """Let ranks be the root in turn."""
    for turn, root, count, dtype in rooted_rounds(lab):
        broadcast_round(lab, turn, count, dtype, root, lab.everyone)
    return f"{len(data.roots(lab.world))} roots  {lab.use(*DTYPES)}"


def reduce(lab: Lab) -> str:
    """Let ranks be the root in turn; only the root's buffer is defined afterwards."""
    for turn, root, count, dtype in rooted_rounds(lab):
        buffer = lab.give_shared(turn, count, dtype, lab.world)
        lab.arrive(turn)
        dist.reduce(buffer, root)
        lab.settle()
        if lab.rank == root:
            lab.check_sum(buffer, lab.everyone, turn, dtype)
    return f"{len(data.roots(lab.world))} roots  {lab.use(*DTYPES)}"


def gather(lab: Lab) -> str:
    """Gather a buffer a rank on rank 0."""
    for turn, count, dtype in rounds(counts_of(lab)):
        gather_round(lab, turn, count, dtype)
    return f"to rank 0  {lab.use(*DTYPES)}"


def all_gather(lab: Lab) -> str:
    """Gather a buffer a rank on every rank."""
    for turn, count, dtype in rounds(counts_of(lab)):
        all_gather_round(lab, turn, count, dtype, lab.everyone)
    return lab.use(*DTYPES)


def all_gather_into_tensor(lab: Lab) -> str:
    """Gather into one buffer for all."""
    for turn, count, dtype in rounds(counts_of(lab)):
        give = lab.give_moved(turn, count, dtype)
        buffer = lab.empty(count * lab.world, dtype)
        lab.arrive(turn)
        with lab.where_supported("all_gather_into_tensor"):
            newest(*ALL_GATHER)(buffer, give)
        lab.check_blocks(buffer.chunk(lab.world), turn, dtype, lab.everyone)
    return lab.use(*DTYPES)


def reduce_scatter(lab: Lab) -> str:
    """Sum one buffer; each rank gets its block."""
    for turn, count, dtype in rounds(counts_of(lab)):
        buffer = lab.give_shared(turn, count * lab.world, dtype, lab.world)
        block = lab.empty(count, dtype)
        lab.arrive(turn)
        with lab.where_supported("reduce_scatter"):
            newest(*REDUCE_SCATTER)(block, buffer)
        lab.check_sum(block, lab.everyone, turn, dtype, shift=count * lab.rank)
    return f"sum  {lab.use(*DTYPES)}"


def all_to_all(lab: Lab) -> str:
    """Exchange blocks of equal size, then of sizes that differ by sender and receiver."""
    ranks = range(lab.world)
    blocks = [[[count] * lab.world for _ in ranks] for count in counts_of(lab)]
    blocks.append([[1 + (3 * sender + 5 * receiver) % 17 for receiver in ranks] for sender in ranks])
    for turn, counts in enumerate(blocks):
        for dtype in DTYPES:
            lab.arrive(turn)
            _exchange(lab, turn, dtype, counts)
    return f"equal and unequal blocks  {lab.use(*DTYPES)}"


def _exchange(lab: Lab, turn: int, dtype: str, counts: list[list[int]]) -> None:
    """Exchange `counts` elements by sender and receiver; a sender's buffer is one pattern, cut into the blocks."""
    outgoing = counts[lab.rank]
    incoming = [row[lab.rank] for row in counts]
    give = lab.give_moved(turn, sum(outgoing), dtype)
    result = lab.empty(sum(incoming), dtype)
    with lab.where_supported("all_to_all_single"):
        dist.all_to_all_single(result, give, incoming, outgoing)
    for sender, block in enumerate(torch.split(result, incoming)):
        lab.check_moved(block, sender, turn, dtype, shift=sum(counts[sender][: lab.rank]))


def send_recv(lab: Lab) -> str:
    """Send around a ring both ways, all ranks at once."""
    if lab.world < 2:
        raise NotSupported("one rank alone has no other rank to send to")
    counts = counts_of(lab)
    turn = 0
    for step in (1, lab.world - 1):
        source = (lab.rank - step) % lab.world
        for _, count, dtype in rounds(counts):
            lab.arrive(turn)
            result = lab.empty(count, dtype)
            run_batch(ring(lab.give_moved(turn, count, dtype), (lab.rank + step) % lab.world, result, source))
            lab.settle()
            lab.check_moved(result, source, turn, dtype)
            turn += 1
    return f"isend/irecv ring both ways  {lab.use(*DTYPES)}"


def large_payloads(lab: Lab) -> str:
    """Send payloads from 1 KB up to the largest; each size has a limit of its own."""
    sizes = lab.sizes([QUICK_PAYLOAD], GROWTH)
    for at, size in enumerate(sizes):
        if at:
            lab.renew(format_size_option(size))
        turn = 3 * at
        block = max(1, size // WIDTH // lab.world)  # the blocks of all ranks have the size
        sum_round(lab, turn, max(1, size // WIDTH), "float32", lab.everyone)
        all_gather_round(lab, turn + 1, block, "float32", lab.everyone)
        gather_round(lab, turn + 2, block, "float32")
        lab.payloads.append(size)
    lab.use("float32")
    return f"{' '.join(map(format_size_option, sizes))} a rank"


TESTS = (
    barrier,
    all_reduce,
    broadcast,
    reduce,
    gather,
    all_gather,
    all_gather_into_tensor,
    reduce_scatter,
    all_to_all,
    send_recv,
)
