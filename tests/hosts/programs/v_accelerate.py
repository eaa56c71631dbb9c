"""A rank under accelerate: v_accelerate.py train | raise RANK | exit RANK | kill RANK | lonely"""

import os
import signal
import sys

import torch
from accelerate import Accelerator

WHAT = sys.argv[1]
WHO = int(sys.argv[2]) if len(sys.argv) > 2 else -1


def main() -> None:
    here = Accelerator()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = here.prepare(model, optimizer)
    for _ in range(2):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        here.backward(loss)
        optimizer.step()
    if here.process_index == WHO:
        fail()
    total = here.reduce(torch.tensor([here.process_index + 1.0])).item()
    print(f"rank {here.process_index} of {here.num_processes}: sum {total:g}", flush=True)
    here.end_training()


def fail() -> None:
    """As the word says."""
    if WHAT == "raise":
        raise RuntimeError(f"rank {WHO} has a bad batch")
    if WHAT == "exit":
        os._exit(3)
    if WHAT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


if WHAT == "lonely":
    print("it never asks who else is there")
else:
    main()
