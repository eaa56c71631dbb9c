"""Steps that all ranks do together over Gloo, until one rank goes its own way at step 3: `p_apart.py WHAT RANK`."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

what, odd = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
Path(f"up-{rank}").write_text(str(os.getpid()))


def read_queue() -> None:
    """Nobody ever writes: open for both ways, so that it is the read that waits."""
    os.mkfifo("queue.bin")
    with os.fdopen(os.open("queue.bin", os.O_RDWR), "rb") as queue:
        queue.read(1)


def save() -> None:
    """A checkpoint on a slow disk: a megabyte at a time."""
    until = time.monotonic() + float(os.environ["SAVE_SECONDS"])
    with open("model.pt", "wb") as file:
        while time.monotonic() < until:
            file.write(bytes(1 << 20))
            time.sleep(0.2)


def share_weights() -> None:
    """The odd rank has another type of the same size: Gloo gives it the bits of the others' numbers."""
    weights = torch.ones(64, dtype=torch.int32 if rank == odd else torch.float32)
    dist.broadcast(weights, 0)
    if what == "type-raise" and weights[0] != 1:
        raise ValueError(f"expected a weight of 1, got {weights[0]}")


def pass_on() -> None:
    """Each sends to the next; the odd one expects its part from another rank than the one that sends to it."""
    world = dist.get_world_size()
    source = (rank - 1) % world
    if rank == odd:
        source = (rank + 1) % world
    if rank % 2:
        dist.recv(torch.empty(64), source)
    dist.send(torch.ones(64), (rank + 1) % world)
    if not rank % 2:
        dist.recv(torch.empty(64), source)


def pass_on_at_once() -> None:
    """As pass_on, without order: both are begun, and then waited for."""
    world = dist.get_world_size()
    source = (rank - 1) % world
    if rank == odd:
        source = (rank + 1) % world
    ends = [
        dist.P2POp(dist.isend, torch.ones(64), (rank + 1) % world),
        dist.P2POp(dist.irecv, torch.empty(64), source),
    ]
    for work in dist.batch_isend_irecv(ends):
        work.wait()


for step in range(8):
    if what in ("short", "short-end") and rank == odd and step == 7:
        break
    if step == 3 and what in ("type", "type-raise"):
        share_weights()
    if step == 3 and what == "ring":
        pass_on()
    if step <= 3 and what == "batch":
        right = odd
        odd = -1 if step < 3 else right
        pass_on_at_once()
        odd = right
    if step == 3 and what == "destroy" and rank == odd:
        dist.destroy_process_group()
        time.sleep(600)
    if step == 3 and what == "destroy-and-call" and rank == odd:
        dist.destroy_process_group()
    if step == 3 and rank == odd and what in ("read", "save"):
        {"read": read_queue, "save": save}[what]()
    wide = what == "shapes" and step == 3 and rank == odd
    dist.all_reduce(torch.ones(4096 if wide else 64))
    print(f"step {step}", flush=True)
if what == "short":
    dist.barrier()
dist.destroy_process_group()
if what == "short-end" and rank == odd:
    os._exit(0)  # at once: torch takes seconds to be torn down on a loaded machine, and the run's end is not awaited
