"""A rank that trains until it is stopped, or its attempt is not the first, and says when it had its first step.

restart.py DIRECTORY. It writes the time of the first step to `stepped-ATTEMPT-RANK`, and its proportional set size (KB)
to `pss-ATTEMPT-RANK`. Where `kill` is made there, the last rank of the first attempt writes the time to `killed` and
kills itself. Where `end` is made, every rank ends at once."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

directory = Path(sys.argv[1])


def write(name: str, value: float | None = None) -> None:
    """Write a number to a file of the directory, the time where there is none."""
    path = directory / (name + ".new")
    path.write_text(repr(time.time() if value is None else value))
    path.rename(directory / name)


def proportional_size() -> float:
    """KB of memory, each page divided by the number of processes that share it (proc(5), smaps_rollup)."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return float(line.split()[1])
    return 0.0


dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
for step in range(20 if attempt else 1_000_000):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    if step == 0:
        write(f"stepped-{attempt}-{dist.get_rank()}")
    if step == 10:
        write(f"pss-{attempt}-{dist.get_rank()}", proportional_size())
    if (directory / "end").exists():
        os._exit(0)
    if not attempt and dist.get_rank() == dist.get_world_size() - 1 and (directory / "kill").exists():
        write("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    print("step", step, flush=True)
    time.sleep(0.1)
dist.destroy_process_group()
