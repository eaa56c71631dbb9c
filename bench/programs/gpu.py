"""Trains on the GPU over NCCL, without one over Gloo: `gpu.py KIND [STEPS [GROUP_TIMEOUT]]`.

Rank 1 does what KIND says at step 30, or 60: `exit`, `kill`, `oom`, `assert`, `illegal`, `sleep` (it never comes back),
`slow` (100 ms more in each step from then on), `restart` (kills itself, in the first attempt), `profile` (every rank
writes a trace), or nothing (`train`, and `timed`: each rank writes when a step began, and its seconds, to steps-RANK).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

KIND = sys.argv[1]
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 60
TIMEOUT = timedelta(seconds=float(sys.argv[3])) if len(sys.argv) > 3 else None
AT = 60 if KIND == "slow" else 30
ODD = 1
ILLEGAL = 'extern "C" __global__ void fault(float *where) { *((float *)0x10) = 1.0f; }'
rank = int(os.environ["RANK"])
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
# Each rank is a host of its own for NCCL, which refuses two ranks of one host on one GPU.
os.environ["NCCL_HOSTID"] = f"virtual-{rank}"
cuda = torch.cuda.is_available()
device = torch.device("cuda", 0) if cuda else torch.device("cpu")
WIDTH = 1024 if cuda else 64  # without a GPU the flow is tried, beside other work


def go_wrong() -> None:
    """What KIND says, on this rank."""
    if KIND == "exit":
        raise ValueError(f"loss is nan at step {AT}")
    if KIND == "kill" or (KIND == "restart" and not attempt):
        os.kill(os.getpid(), signal.SIGKILL)
    if KIND == "sleep":
        time.sleep(3600)
    if KIND == "oom":
        torch.empty(1 << 42, dtype=torch.uint8, device=device)
    if KIND == "assert":
        table = torch.zeros(8, 4, device=device)
        table[torch.tensor([99], device=device)].sum().item()
    if KIND == "illegal":
        compile_kernel = torch.cuda._compile_kernel  # noqa: SLF001  it has no public name
        compile_kernel(ILLEGAL, "fault")((1, 1, 1), (1, 1, 1), (torch.ones(1, device=device),))
        torch.cuda.synchronize()


def step(number: int) -> torch.Tensor:
    """One step on this rank: forward, back, the gradients of all."""
    optimizer.zero_grad()
    loss: torch.Tensor = model(torch.randn(64, WIDTH, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
    if rank == ODD and number >= AT and KIND == "slow":
        time.sleep(0.1)
    return loss


if cuda:
    torch.cuda.set_device(device)
else:
    torch.set_num_threads(1)
dist.init_process_group("nccl" if cuda else "gloo", timeout=TIMEOUT)
layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
profiler = torch.profiler.profile() if KIND == "profile" else None
times = open(f"steps-{rank}", "w") if KIND == "timed" else None  # noqa: SIM115  until the process ends
for number in range(STEPS):
    if rank == ODD and number == AT:
        go_wrong()
    if profiler is not None and number == AT:
        profiler.start()
    began = time.time()
    loss = step(number)
    if times is not None:
        print(began, time.time() - began, file=times, flush=True)
    if profiler is not None and number >= AT:
        profiler.step()
    if number % 5 == 0 and rank == 0:
        print("step", number, "loss", round(loss.item(), 4), flush=True)
if profiler is not None:
    profiler.stop()
    os.makedirs("traces", exist_ok=True)
    profiler.export_chrome_trace(f"traces/rank_{rank}_trace.json")
dist.destroy_process_group()
