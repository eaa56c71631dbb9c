"""A rank that trains a small model over Gloo and goes on, bit for bit, from what it has saved: chaos.py STEPS PAUSE.

It saves weights, momentum, the states of the random generators and the place in the data, each SAVE_EVERY steps and
where allranks asks. It prints numbered lines. `taken-NODE-ATTEMPT-RANK-PID` counts those that the kernel has taken.
Rank 0 writes each loss to `losses`. The file `do-RANK` has a word for a rank: raise, connection, leave, sleep,
segfault or stop-at-end, or the directory of a control group in which it takes more memory than there is.
"""

import atexit
import ctypes
import mmap
import os
import random
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler, TensorDataset

import allranks

STEPS = int(sys.argv[1])
PAUSE = float(sys.argv[2])
SAVE_EVERY = 10
LINES = 4  # a step
WIDTH = 64
BATCH = 8
SAMPLES = 256
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ.get("ALLRANKS_ATTEMPT", "0"))


class Order(Sampler[int]):
    """A rank's samples in random order, epoch after epoch, from any place on."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1000 + RANK)
        self.epoch_state = self.generator.get_state()
        self.place = 0  # samples of this epoch that were trained on

    def __iter__(self):
        while True:
            self.generator.set_state(self.epoch_state)
            order = torch.randperm(SAMPLES, generator=self.generator).tolist()
            after = self.generator.get_state()
            yield from order[self.place :]
            self.epoch_state = after
            self.place = 0


class Training:
    """All that a checkpoint holds."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
        self.momentum = [torch.zeros_like(p) for p in self.model.parameters()]
        inputs = torch.randn(SAMPLES, 16)
        self.data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
        self.order = Order()
        self.step = 0
        torch.manual_seed(100 + RANK)
        random.seed(200 + RANK)

    def save(self, directory: str) -> None:
        """Write this rank's part; the two newest are kept, as a rank may have ended between the parts of the last."""
        state = {
            "model": self.model.state_dict(),
            "momentum": self.momentum,
            "torch": torch.get_rng_state(),
            "random": random.getstate(),
            "epoch_state": self.order.epoch_state,
            "place": self.order.place,
        }
        path = part(directory, self.step, RANK)
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
        for old in saved_steps(directory, [RANK])[:-3]:
            part(directory, old, RANK).unlink(missing_ok=True)

    def resume(self, directory: str) -> None:
        """Go on from the newest step that all ranks have saved; rank 0 says which."""
        steps = saved_steps(directory, range(WORLD_SIZE)) if RANK == 0 else []
        newest = torch.tensor([steps[-1] if steps else 0])
        dist.broadcast(newest, 0)
        self.step = int(newest.item())
        if self.step == 0:
            return
        state = torch.load(part(directory, self.step, RANK), weights_only=False)
        self.model.load_state_dict(state["model"])
        self.momentum = state["momentum"]
        torch.set_rng_state(state["torch"])
        random.setstate(state["random"])
        self.order.epoch_state = state["epoch_state"]
        self.order.place = state["place"]

    def train(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        """One step of all ranks: their mean loss."""
        inputs, targets = batch
        parameters = list(self.model.parameters())
        self.model.zero_grad()
        noise = 1 + 0.01 * random.random()
        loss = ((self.model(inputs) - noise * targets) ** 2).mean()
        loss.backward()
        gathered = torch.cat([loss.detach().reshape(1), *(p.grad.reshape(-1) for p in parameters)])
        dist.all_reduce(gathered)
        gathered /= WORLD_SIZE
        start = 1
        with torch.no_grad():
            for parameter, momentum in zip(parameters, self.momentum, strict=True):
                gradient = gathered[start : start + parameter.numel()].reshape(parameter.shape)
                start += parameter.numel()
                momentum.mul_(0.9).add_(gradient)
                parameter.sub_(momentum, alpha=0.001)
        self.step += 1
        self.order.place += BATCH
        return float(gathered[0].item())


def part(directory: str, step: int, rank: int) -> Path:
    """The file of a rank's part of a checkpoint."""
    return Path(directory, f"step-{step:06d}-rank-{rank}.pt")


def saved_steps(directory: str, ranks) -> list[int]:
    """Steps that all of these ranks have saved, in order."""
    by_rank = [{int(path.name.split("-")[1]) for path in Path(directory).glob(f"step-*-rank-{r}.pt")} for r in ranks]
    return sorted(set.intersection(*by_rank))


class Lines:
    """Numbered lines on standard output, and how many of them the kernel has taken."""

    def __init__(self) -> None:
        self.head = f"L {RANK} {ATTEMPT} {os.getpid()}"
        self.number = 0
        path = f"taken-{socket.gethostname()}-{ATTEMPT}-{RANK}-{os.getpid()}"
        with open(path, "wb") as file:
            file.write(bytes(8))
        with open(path, "r+b") as file:
            self.counter = mmap.mmap(file.fileno(), 8)

    def print(self) -> None:
        """Write a line, then count it."""
        text = f"{self.head} {self.number} ".encode().ljust(WIDTH - 1, b".") + b"\n"
        assert os.write(1, text) == WIDTH
        self.number += 1
        struct.pack_into("<Q", self.counter, 0, self.number)


def word() -> str:
    """What this rank is asked to do, once."""
    path = Path(f"do-{RANK}")
    if not path.exists():
        return ""
    text = path.read_text()
    path.rename(f"done-{RANK}")
    return text


def obey(order: str) -> None:
    """Fail in the way that is asked for."""
    if order == "stop-at-end":
        atexit.register(os.kill, os.getpid(), signal.SIGSTOP)
    if order == "raise":
        raise ValueError("bad batch of the chaos")
    if order == "connection":
        raise ConnectionResetError("the storage of the chaos is away")
    if order == "leave":
        os._exit(0)
    if order == "sleep":
        time.sleep(100_000)
    if order == "segfault":
        ctypes.string_at(0)
    if order.startswith("/"):
        Path(order, "cgroup.procs").write_text(str(os.getpid()))
        kept = []
        while True:
            kept.append(bytearray(16 << 20))


def main() -> None:
    """Train to the end."""
    torch.set_num_threads(1)
    lines = Lines()
    dist.init_process_group("gloo")
    training = Training()
    directory = allranks.checkpoint_dir()
    training.resume(directory)
    # A generator of its own: making the iterator draws from it.
    loader = DataLoader(training.data, batch_size=BATCH, sampler=training.order, generator=torch.Generator())
    batches = iter(loader)
    while training.step < STEPS:
        loss = training.train(next(batches))
        if RANK == 0:
            with open("losses", "a") as file:
                file.write(f"{ATTEMPT} {training.step} {loss.hex()}\n")
        allranks.report_step(training.step, STEPS, loss=loss)
        for _ in range(LINES):
            lines.print()
        is_asked = allranks.should_save(training.step)
        if is_asked or training.step % SAVE_EVERY == 0:
            training.save(directory)
        obey(word())
        time.sleep(PAUSE)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
