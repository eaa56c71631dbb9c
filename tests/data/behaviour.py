"""Prints all that a program can see of its loaders; with and without the probe it must print the same."""

import hashlib
import itertools
import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": torch.rand(3) + index, "name": f"n{index}", "pair": (index, float(index))}


class Ragged(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.arange(index + 1), {"boxes": torch.ones(index, 4)}


class Count(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id if info else 0, 9, info.num_workers if info else 1)


class Own(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield "own", batch


class Odd:
    def __init__(self, items):
        self.items, self.me = items, self  # refers to itself

    def __len__(self):
        return len(self.items)


def show(value):
    if isinstance(value, torch.Tensor):
        return [list(value.shape), hashlib.sha256(value.double().numpy().tobytes()).hexdigest()[:8]]
    if isinstance(value, dict):
        return {key: show(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(show, value)]
    return repr(value) if not isinstance(value, Odd) else show(value.items)


def loaders():
    numbers = TensorDataset(torch.arange(20).reshape(10, 2), torch.rand(10, 2, dtype=torch.float64))
    yield "map", DataLoader(numbers, 3, shuffle=True)
    yield "bfloat16", DataLoader(TensorDataset(torch.ones(4, 3000, dtype=torch.bfloat16)), 2)
    yield "workers", DataLoader(Squares(), 3, num_workers=2, shuffle=True)
    yield "persistent", DataLoader(Squares(), 2, num_workers=2, persistent_workers=True, prefetch_factor=3)
    yield "stream", DataLoader(Count(), 2)
    yield "stream of two", DataLoader(Count(), 2, num_workers=2)
    yield "no batches", DataLoader(Count(), None)
    yield "ragged", DataLoader(Ragged(), 2, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))
    yield "object", DataLoader(Ragged(), 2, collate_fn=Odd)
    yield "own class", Own(numbers, 5)
    yield "empty", DataLoader([], 2)


def main() -> None:
    torch.manual_seed(3)
    for name, loader in loaders():
        print(name, len(loader) if not isinstance(loader.dataset, IterableDataset) else "")
        for epoch in range(4):
            found = iter(loader)
            print(epoch, type(found).__name__, type(found).__module__, isinstance(found, _BaseDataLoaderIter),
                  isinstance(found, _MultiProcessingDataLoaderIter))  # fmt: skip
            most = 2 if epoch == 1 else 99  # the second is left half way
            for batch in itertools.islice(found, most):
                print(show(batch))
            print(next(found, "end") if epoch != 1 else "", getattr(found, "_num_yielded", ""))
        print(torch.rand(1).item())
    broken = DataLoader([1, 2, None], 1)
    try:
        list(broken)
    except TypeError as error:
        print(type(error).__name__, len(str(error)))
    print(sorted(os.listdir("/proc/self/fd"), key=int)[-1], file=sys.stderr)


if __name__ == "__main__":
    main()
