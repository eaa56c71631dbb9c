"""The smallest training script that uses allranks' Python API; it runs under any launcher, or alone.

    python train_api.py
    torchrun --nproc-per-node 2 train_api.py
    srun -N 2 --ntasks-per-node 2 python train_api.py
    mpirun -np 4 -x MASTER_ADDR=node01 python train_api.py
    allranks run --hosts hosts.txt --nproc 2 train_api.py

Where allranks is not installed in the training image, copy allranks/program.py beside the script: it is one file.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

try:
    from allranks import init_process_group, report_step
except ImportError:
    from program import init_process_group, report_step


def main(steps: int) -> None:
    group = init_process_group()
    torch.manual_seed(0)
    inputs = torch.rand(256, 4)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data, group.world_size, group.rank)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(group.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    for epoch in range(steps):
        sampler.set_epoch(epoch)
        for x, y in loader:
            if step == steps:
                break
            step += 1
            loss = (model(x.to(group.device)) - y.to(group.device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            report_step(step, steps, loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
