"""A rank that meets the others over real Gloo: all_reduce of its rank; prints the sum and its interface."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([dist.get_rank()])
dist.all_reduce(value)
print("SUM", int(value), "OVER", os.environ.get("GLOO_SOCKET_IFNAME"), flush=True)
dist.destroy_process_group()
