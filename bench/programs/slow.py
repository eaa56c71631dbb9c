"""Trains until `stop` lies in the working directory: `slow.py KIND [RANK STEP SECONDS]`.

A step is a batch of a DataLoader with a worker, a small network forward and back, 50 ms as of a device, and an
all_reduce of the gradients. From STEP on RANK sleeps SECONDS in each step (KIND `sleep`), or its samples take as long
(`loader`). `stages` sends activations from rank to rank and has one stage that takes three times as long; `saves` has
rank 0 log every 10 steps and save for a second every 40. Both do so from the beginning, by design.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]
RANK, STEP = (int(word) for word in (sys.argv[2:4] or ("-1", "0")))
SECONDS = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
DEVICE = 0.05
SIZE = 16


class Samples(Dataset[torch.Tensor]):
    """Random samples; on one rank they take long from a batch on."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if KIND == "loader" and dist_rank == RANK and index // SIZE >= STEP:
            time.sleep(SECONDS / SIZE)
        return torch.full((128,), index % 7, dtype=torch.float32)


torch.set_num_threads(1)
dist_rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
world = dist.get_world_size()
network = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128))
loader = iter(DataLoader(Samples(), batch_size=SIZE, num_workers=int(KIND == "loader"), prefetch_factor=2
                         if KIND == "loader" else None))  # fmt: skip
dist.barrier()
Path(f".up-{dist_rank}").write_text(str(os.getpid()))
Path(f".up-{dist_rank}").rename(f"up-{dist_rank}")


def train() -> torch.Tensor:
    """One step on this rank; the gradients in one piece."""
    network.zero_grad()
    network(next(loader)).square().mean().backward()
    time.sleep(DEVICE)
    return torch.cat([p.grad.reshape(-1) for p in network.parameters() if p.grad is not None])


def pass_on() -> None:
    """A stage of a pipeline: receive, work, send."""
    activations = torch.zeros(1 << 12)
    if dist_rank:
        dist.recv(activations, dist_rank - 1)
    time.sleep(0.06 if dist_rank == 3 else 0.02)
    if dist_rank < world - 1:
        dist.send(activations, dist_rank + 1)


step = 0
stop = torch.zeros(1)
while not stop.item():
    gradients = train()
    if KIND == "stages":
        pass_on()
    if KIND == "sleep" and dist_rank == RANK and step >= STEP:
        time.sleep(SECONDS)
    if KIND == "saves" and dist_rank == 0 and step % 40 == 39:
        time.sleep(1.0)
    dist.all_reduce(gradients)
    stop[0] = float(os.path.exists("stop"))
    dist.all_reduce(stop)
    step += 1
    if dist_rank == 0 and step % 10 == 0:
        print("step", step, flush=True)
dist.destroy_process_group()
