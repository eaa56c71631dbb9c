"""From one rank to another: a ring both ways at once, and a token that goes round."""

from __future__ import annotations

import torch.distributed as dist

from ..lab import Lab, NotSupported, Test
from .simple import counts_of


def send_recv(lab: Lab) -> str:
    """isend and irecv to the next rank and to the one before; then send and recv, one rank after the other."""
    if lab.world < 2:
        raise NotSupported("one rank alone has nobody to send to")
    turn = 0
    for step in (1, lab.world - 1):
        for count in counts_of(lab):
            for dtype in ("float32", "int64"):
                lab.arrive(turn)
                _ring(lab, turn, step, count, dtype)
                turn += 1
    lab.arrive(turn)
    _token(lab, turn)
    return f"isend/irecv ring both ways, send/recv token  {lab.use('float32', 'int64')}"


def _ring(lab: Lab, turn: int, step: int, count: int, dtype: str) -> None:
    """Batched: NCCL would deadlock when every rank sends first."""
    to, source = (lab.rank + step) % lab.world, (lab.rank - step) % lab.world
    own, got = lab.give_moved(turn, count, dtype), lab.empty(count, dtype)
    ops = [dist.P2POp(dist.isend, own, to), dist.P2POp(dist.irecv, got, source)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    lab.settle()
    lab.check_moved(got, source, turn, dtype)


def _token(lab: Lab, turn: int) -> None:
    """Rank 0's own numbers come back to it through all others; each adds one to the first element."""
    count = 1000
    token = lab.give_moved(turn, count, "int64")
    if lab.rank == 0:
        first = token.clone()
        dist.send(token, 1)
        got = lab.empty(count, "int64")
        dist.recv(got, lab.world - 1)
        lab.settle()
        due = int(first[0]) + lab.world - 1
        if int(got[0]) != due:
            lab.note(turn, "int64 token", 0, str(due), str(int(got[0])))
        got[0] -= lab.world - 1
        lab.check_moved(got, 0, turn, "int64")
    else:
        got = lab.empty(count, "int64")
        dist.recv(got, lab.rank - 1)
        got[0] += 1
        dist.send(got, (lab.rank + 1) % lab.world)
        lab.settle()


POINTS = (Test("send_recv", send_recv),)
