"""Ranks that compute and meet; from step 60 on rank 1 has three times as much to compute as before."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
done = torch.zeros(1)
step = 0
while not done:
    step += 1
    ends = time.process_time() + (0.06 if rank == 1 and step > 60 else 0.02)
    while time.process_time() < ends:
        sum(range(1000))
    done.fill_(os.path.exists("done"))
    dist.all_reduce(done)  # all ranks leave at the same step
    if rank == 0:
        print(f"step {step}", flush=True)
dist.destroy_process_group()
