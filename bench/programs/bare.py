"""A hand-written loop of torch.distributed calls: `bare.py SIZE…`; rank 0 prints {size: [seconds of each round]}."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

ROUNDS, WARM = 50, 3
dist.init_process_group("gloo")
found = {}
for size in map(int, sys.argv[1:]):
    buffer = torch.zeros(size // 4)
    times = []
    for _ in range(WARM + ROUNDS):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(buffer)
        times.append(time.perf_counter() - began)
    slowest = torch.tensor(times[WARM:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    found[size] = slowest.tolist()
if os.environ["RANK"] == "0":
    print(json.dumps(found), flush=True)
dist.destroy_process_group()
