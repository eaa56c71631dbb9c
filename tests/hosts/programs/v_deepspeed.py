"""A rank under deepspeed, with its --local_rank: v_deepspeed.py --what train | raise | exit | kill --who RANK"""

import argparse
import os
import signal

import deepspeed
import torch

PARSER = argparse.ArgumentParser()
PARSER.add_argument("--local_rank", type=int, default=-1)
PARSER.add_argument("--what", default="train")
PARSER.add_argument("--who", type=int, default=-1)
ARGS = PARSER.parse_args()


def main() -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if rank == ARGS.who:
        fail(rank)
    total = torch.tensor([rank + 1.0])
    torch.distributed.all_reduce(total)
    print(f"rank {rank} of {world}, local {ARGS.local_rank}: sum {total.item():g}", flush=True)
    torch.distributed.destroy_process_group()


def fail(rank: int) -> None:
    """As the word says."""
    if ARGS.what == "raise":
        raise RuntimeError(f"rank {rank} has a bad batch")
    if ARGS.what == "exit":
        os._exit(3)
    if ARGS.what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


main()
