"""A rank with a real process group (gloo): v_gloo.py sum | raise RANK | late RANK | hang RANK [torch's-limit]"""

import os
import sys
import time

RANK, WHAT = int(os.environ["RANK"]), sys.argv[1]
WHO = int(sys.argv[2]) if len(sys.argv) > 2 else -1


def wait_for_nothing() -> None:
    while True:
        time.sleep(0.5)


if WHAT == "late" and RANK == WHO:
    wait_for_nothing()

import datetime  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def main() -> None:
    own = None if "torch's-limit" in sys.argv else datetime.timedelta(minutes=30)
    dist.init_process_group("gloo", timeout=own)
    if WHAT == "hang" and RANK == WHO:
        wait_for_nothing()
    total = torch.tensor([float(RANK + 1)])
    dist.all_reduce(total)
    local, world = os.environ["LOCAL_RANK"], dist.get_world_size()
    print(f"rank {RANK} of {world}, local {local}: sum {total.item():g}", flush=True)
    if WHAT == "raise" and RANK == WHO:
        raise RuntimeError(f"rank {RANK} has a bad batch")
    if WHAT == "raise":
        dist.barrier()
    dist.destroy_process_group()


main()
