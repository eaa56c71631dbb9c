"""Steps that all ranks do together, each with its duration: stacks.py SECONDS."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.ones(1000)
with open(f"steps-{rank}", "w") as durations:
    Path(f"up-{rank}").write_text(str(os.getpid()))
    while not Path("done").exists():
        began = time.time()
        time.sleep(float(sys.argv[1]))
        dist.all_reduce(value)
        print(began, time.time() - began, file=durations, flush=True)
    dist.barrier()
os._exit(0)
