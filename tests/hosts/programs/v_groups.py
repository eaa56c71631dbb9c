"""Rank 0 waits for 1 in one group, 1 for 2 in another, 2 for 3 in a third. Rank 3 sleeps, or receives from rank 0."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group(pair) for pair in ([0, 1], [1, 2], [2, 3])]
for _ in range(3):
    for pair, group in zip(([0, 1], [1, 2], [2, 3]), groups, strict=True):
        if rank in pair:
            dist.all_reduce(torch.ones(100), group=group)
dist.barrier()
if rank == 3 and sys.argv[1] == "sleep":
    time.sleep(3600)
elif rank == 3:
    dist.recv(torch.ones(10), 0)
else:
    dist.all_reduce(torch.ones(100), group=groups[rank])
