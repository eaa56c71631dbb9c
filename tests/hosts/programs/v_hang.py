"""Steps that all ranks do together, until one rank does something else: `v_hang.py WHAT [RANK]`."""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

what, odd = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
dist.init_process_group("gloo")
rank = dist.get_rank()
Path(f"up-{rank}").write_text(str(os.getpid()))


def misbehave() -> None:
    """What the odd rank does at its fourth step."""
    if what == "sleep":
        time.sleep(600)
    if what == "native":
        ctypes.PyDLL(None).sleep(600)  # keeps the interpreter's lock
        print("woken", flush=True)
    if what == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    if what == "skip":
        dist.barrier()
    if what == "gather":
        dist.all_gather([torch.ones(1000) for _ in range(dist.get_world_size())], torch.ones(1000))
    if what == "chatty":
        while True:
            print("still here", flush=True)
            time.sleep(0.5)


if what == "construct":  # when the link is dead
    while not Path("dropped").exists():
        time.sleep(0.05)
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
for step in range(10**6 if what == "go" else 8):
    if step == 3 and rank == odd and what != "go":
        misbehave()
    if what == "go":
        time.sleep(0.1)
    dist.all_reduce(torch.ones(1000))
    print(f"step {step}", flush=True)
dist.destroy_process_group()
