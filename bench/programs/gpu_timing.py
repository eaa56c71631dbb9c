"""Microseconds of one all_reduce of 4 KB in a group of one rank, as it is queued and as the GPU is done with it.

The environment says whether torch times collectives (TORCH_NCCL_ENABLE_TIMING). Of one rank, since nothing of another's
is to be measured.
"""

import os
import time

import torch
import torch.distributed as dist

ROUNDS = 5000
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29778")
torch.cuda.set_device(0)
dist.init_process_group("nccl")
ones = torch.ones(1 << 10, device="cuda")
for _ in range(1000):
    dist.all_reduce(ones)
torch.cuda.synchronize()
queued = done = float("inf")
for _ in range(5):  # the quietest of five
    began = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(ones)
    queued = min(queued, time.perf_counter() - began)
    torch.cuda.synchronize()
    done = min(done, time.perf_counter() - began)
print(round(queued / ROUNDS * 1e6, 2), round(done / ROUNDS * 1e6, 2))
dist.destroy_process_group()
