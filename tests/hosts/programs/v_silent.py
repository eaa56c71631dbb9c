"""Collectives once a second for SECONDS, and not a word: `v_silent.py SECONDS`."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
Path(f"up-{dist.get_rank()}").write_text(str(os.getpid()))
until = time.monotonic() + float(sys.argv[1])
going = torch.ones(1)
while going.item() > 0:
    time.sleep(1)
    going.fill_(float(time.monotonic() < until))
    dist.broadcast(going, 0)
dist.destroy_process_group()
