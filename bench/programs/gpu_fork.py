"""Two forked children of a process that has imported torch use the GPU over NCCL: `gpu_fork.py [available]`.

With `available` the parent has asked torch.cuda.is_available() before, as many programs do at their top.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

if "available" in sys.argv:
    print("available", torch.cuda.is_available(), flush=True)
ranks = []
for rank in range(2):
    pid = os.fork()
    if not pid:
        began = time.monotonic()
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29777",
                          NCCL_HOSTID=str(rank), NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1",
                          NCCL_SOCKET_IFNAME="lo")  # fmt: skip
        torch.cuda.set_device(0)
        dist.init_process_group("nccl")
        ones = torch.ones(1 << 20, device="cuda")
        dist.all_reduce(ones)
        assert ones.sum().item() == 2 << 20
        print("rank", rank, round(time.monotonic() - began, 2), flush=True)
        dist.destroy_process_group()
        os._exit(0)
    ranks.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
print("codes", codes)
sys.exit(max(map(abs, codes)))
