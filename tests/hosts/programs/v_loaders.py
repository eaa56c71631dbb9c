"""Reads loaders as a training loop would: v_loaders.py NAME… [WORKERS CONTEXT]. No process group, no model."""

import os
import sys

from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Right(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return float(index), index


class Wrong(Right):
    """Sharded by the local rank below."""


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    names = [word for word in sys.argv[1:] if word in ("right", "wrong", "stuck")]
    more = sys.argv[1 + len(names) :]
    workers = {}
    if more:
        workers = {"num_workers": int(more[0]), "multiprocessing_context": more[1], "persistent_workers": True}
    for name in names:
        data = Wrong() if name == "wrong" else Right()
        ranks = (here, local) if name == "wrong" else (world, rank)
        sampler = DistributedSampler(data, *ranks, seed=1)
        loader = DataLoader(data, 4, sampler=sampler, **workers)
        for epoch in range(2):
            if name != "stuck":
                sampler.set_epoch(epoch)
            for _ in loader:
                pass
    print("read", flush=True)


if __name__ == "__main__":
    main()
