"""A rank that trains until it is stopped, or its attempt is not the first, and says when it had its first step.

restart.py DIRECTORY. It writes the time of the first step to `stepped-ATTEMPT-RANK`. Where `kill` is made there, the
last rank of the first attempt writes the time to `killed` and kills itself."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

directory = Path(sys.argv[1])


def write(name: str) -> None:
    """Write the time to a file of the directory."""
    path = directory / (name + ".new")
    path.write_text(repr(time.time()))
    path.rename(directory / name)


dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
attempt = int(os.environ["ALLRANKS_ATTEMPT"])
for step in range(20 if attempt else 1_000_000):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    if step == 0:
        write(f"stepped-{attempt}-{dist.get_rank()}")
    if not attempt and dist.get_rank() == dist.get_world_size() - 1 and (directory / "kill").exists():
        write("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    print("step", step, flush=True)
    time.sleep(0.1)
dist.destroy_process_group()
