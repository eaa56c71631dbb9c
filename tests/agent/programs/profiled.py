"""Trains until its directory has a file `enough`; the word says what else it does once a file `now` is there."""

import os
import sys
import time

import torch  # noqa: TID253  this is a program
import torch.distributed as dist  # noqa: TID253


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((2,), float(index)) + 1


def from_a_forked_worker():
    """A worker process is forked while the rank is profiled; what its operators record would stay in it."""
    rows = list(torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1))
    print("rows", rows[0].sum().item(), flush=True)


def own_profile():
    with torch.profiler.profile() as profile:
        torch.ones(64).cosh()
    print("own trace", any(event.name == "aten::cosh" for event in profile.events()), flush=True)


def main():
    word = sys.argv[1]
    dist.init_process_group("gloo")
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    profile = torch.profiler.profile() if word == "profiling" else None
    if profile is not None:
        profile.start()
    print("ready", flush=True)
    enough = torch.zeros(1)
    while not enough.item():
        optimizer.zero_grad()
        model(torch.randn(8, 32)).tanh().sum().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
        time.sleep(0.01)
        if word in ("fork", "own") and os.path.exists("now"):
            {"fork": from_a_forked_worker, "own": own_profile}[word]()
            word = ""
        enough[0] = float(os.path.exists("enough"))
        dist.all_reduce(enough)
    if profile is not None:
        profile.stop()
        print("own trace", len(profile.events()) > 0, flush=True)
    if word != "stays":
        dist.destroy_process_group()
    # else a thread of Gloo may give it up while Python ends, and torch aborts (pytorch/pytorch#190489)
    while enough._use_count() > 1:  # noqa: SLF001
        time.sleep(0.01)
    print("done", flush=True)


main()
