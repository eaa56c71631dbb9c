"""A rank under ColossalAI, as a program of its own starts: v_colossalai.py [WORD…]"""

import sys

import colossalai
import torch
import torch.distributed as dist


def main() -> None:
    colossalai.launch_from_torch(backend="gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {total.item():g}", *sys.argv[1:], flush=True)
    dist.destroy_process_group()


main()
