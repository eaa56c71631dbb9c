"""Ten loaders that are wrong on purpose and six that are right, for ranks that a launcher's environment describes.

Each is a function that yields its loader once an epoch, as a training loop would begin it.
"""

import os
import random

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    get_worker_info,
)  # fmt: skip

SIZE, BATCH = 96, 4
RANK, WORLD = (lambda: int(os.environ["RANK"])), (lambda: int(os.environ["WORLD_SIZE"]))
LOCAL, LOCAL_WORLD = (lambda: int(os.environ["LOCAL_RANK"])), (lambda: int(os.environ["LOCAL_WORLD_SIZE"]))
NODE, NODES = (lambda: int(os.environ["GROUP_RANK"])), (lambda: int(os.environ["NNODES"]))


class Images(Dataset):
    """Pictures and labels; the content follows from the index."""

    def __init__(self, size=SIZE):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if not 0 <= index < self.size:
            raise IndexError(index)
        return torch.full((3, 4, 4), float(index)), index % 10


class Augmented(Images):
    """The same pictures, changed at random each time they are read."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + random.random(), label


class Stream(IterableDataset):
    """A stream of samples, shared out by what it is told, and by worker if it is told to."""

    def __init__(self, part, parts, by_worker=True, size=SIZE):
        self.part, self.parts, self.by_worker, self.size = part, parts, by_worker, size

    def __iter__(self):
        part, parts, info = self.part, self.parts, get_worker_info()
        if info is not None and self.by_worker:
            part, parts = part * info.num_workers + info.id, parts * info.num_workers
        for index in range(part, self.size, parts):
            yield {"text": f"sample {index}", "tokens": torch.arange(index, index + 5)}


def epochs(loader, set_epoch=None):
    for epoch in range(3):
        if set_epoch is not None:
            set_epoch(epoch)
        yield loader


def sampled(data, parts, part, **more):
    sampler = DistributedSampler(data, parts, part)
    return epochs(DataLoader(data, BATCH, sampler=sampler, **more), sampler.set_epoch)


# ---- wrong


def no_sampler():
    return epochs(DataLoader(Images(), BATCH))


def by_local_rank():
    return sampled(Images(), LOCAL_WORLD(), LOCAL())


def sharded_twice():
    return sampled(Subset(Images(), list(range(RANK(), SIZE, WORLD()))), WORLD(), RANK())


def same_seed_replacement():
    sampler = RandomSampler(Images(), replacement=True, generator=torch.Generator().manual_seed(7))
    return epochs(DataLoader(Images(), BATCH, sampler=sampler))


def epoch_forgotten():
    return epochs(DataLoader(Images(), BATCH, sampler=DistributedSampler(Images(), WORLD(), RANK())))


def drop_last_differs():
    return sampled(Images(SIZE + 8), WORLD(), RANK(), drop_last=RANK() == 0)


def workers_repeat():
    return epochs(DataLoader(Stream(RANK(), WORLD(), by_worker=False), BATCH, num_workers=2))


def by_node_only():
    return sampled(Images(), NODES(), NODE())


def rank_without_data():
    batches = list(BatchSampler(SequentialSampler(Images(12)), BATCH, False))
    return epochs(DataLoader(Images(12), batch_sampler=batches[RANK() :: WORLD()]))


def shuffled_per_rank():
    return epochs(DataLoader(Images(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(RANK())))


# ---- right


def distributed():
    return sampled(Images(), WORLD(), RANK())


def distributed_padded():
    return sampled(Images(SIZE + 1), WORLD(), RANK())


def batch_sampler():
    sampler = DistributedSampler(Images(), WORLD(), RANK(), shuffle=False)
    return epochs(DataLoader(Images(), batch_sampler=BatchSampler(sampler, BATCH, drop_last=True)))


def sharded_stream():
    return epochs(DataLoader(Stream(RANK(), WORLD()), BATCH))


def stream_with_workers():
    return epochs(DataLoader(Stream(RANK(), WORLD()), BATCH, num_workers=2, persistent_workers=True))


def single_rank():
    return epochs(DataLoader(Images(), BATCH, shuffle=True))


# ---- more of both


def augmented():
    return sampled(Augmented(), WORLD(), RANK())


def augmented_not_sharded():
    return epochs(DataLoader(Augmented(), BATCH, shuffle=True))


def own_subset():
    mine = Subset(Images(), list(range(RANK(), SIZE, WORLD())))
    return epochs(DataLoader(mine, BATCH, shuffle=True))


def raises():
    raise RuntimeError("no such corpus")
