"""Collectives until the odd rank does something else: `hang.py sleep|stop|gather RANK`."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

what, odd = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(50):
    dist.all_reduce(torch.ones(1 << 16))
dist.barrier()
Path(f"up-{rank}").write_text(str(time.time()))
if rank == odd:
    if what == "sleep":
        time.sleep(600)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "gather":
        dist.all_gather([torch.ones(100) for _ in range(dist.get_world_size())], torch.ones(100))
dist.all_reduce(torch.ones(1 << 16))
