"""Steps with 256 KiB of gradients each, printed by rank 0, until the file `done` exists in the working directory."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
open(f"up-{dist.get_rank()}-{os.getpid()}", "w").close()
gradients = torch.ones(1 << 16)
going = torch.ones(1)
step = 0
while going.item():
    dist.all_reduce(gradients)
    gradients.fill_(1.0)
    going.fill_(0.0 if dist.get_rank() == 0 and os.path.exists("done") else 1.0)
    dist.broadcast(going, 0)
    if dist.get_rank() == 0:
        print(f"step {step} loss 2.1", flush=True)
    step += 1
    time.sleep(0.2)
dist.destroy_process_group()
