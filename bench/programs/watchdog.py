"""Steps over Gloo until one rank does something else: `watchdog.py WAY RANK STEP GROUP_TIMEOUT`.

Each way to hang is a function, whose name must be in the stack that a verdict shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

way, odd, at, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
dist.init_process_group("gloo", timeout=timedelta(seconds=limit))
rank, size = dist.get_rank(), dist.get_world_size()
pairs = [dist.new_group(list(range(size))) for _ in range(2)]
gradients = torch.ones(1 << 12)


class Samples(Dataset[torch.Tensor]):
    """Data that one never gets: `wait` is called for the first sample."""

    def __init__(self, wait: object) -> None:
        self.wait = wait

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if callable(self.wait):
            self.wait()
        return torch.ones(1)


def asleep() -> None:
    time.sleep(3600)


def other_collective() -> None:
    dist.all_gather([torch.ones(100) for _ in range(size)], torch.ones(100))


def wrong_order() -> None:
    dist.all_reduce(gradients, group=pairs[1])


def ended_early() -> None:
    dist.barrier()


def lock_in_dataset() -> None:
    lock = threading.Lock()
    lock.acquire()
    next(iter(DataLoader(Samples(lock.acquire))))


def _sleeps() -> None:
    time.sleep(3600)


def loader_worker() -> None:
    next(iter(DataLoader(Samples(_sleeps), num_workers=1)))


def swallowed_exception() -> None:
    jobs: queue.Queue[int] = queue.Queue()
    with contextlib.suppress(ValueError):
        jobs.put(int("nan"))
    jobs.get()


def missing_barrier() -> None:
    dist.all_reduce(gradients)  # where the others are in a barrier


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def file_lock() -> None:
    with open(f"lock-{rank}", "w") as first, open(f"lock-{rank}", "w") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        fcntl.flock(second, fcntl.LOCK_EX)


def silent_server() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname()).recv(1)


def child_process() -> None:
    subprocess.run(["sleep", "3600"], check=True)


def pipe_without_reader() -> None:
    os.mkfifo(f"checkpoint-{rank}")
    with open(f"checkpoint-{rank}", "wb") as checkpoint:
        checkpoint.write(b"weights")


def joined_thread() -> None:
    worker = threading.Thread(target=_sleeps, daemon=True)
    worker.start()
    worker.join()


def waits_for_file() -> None:
    while not os.path.exists("never"):
        time.sleep(0.5)


def event_loop() -> None:
    asyncio.run(asyncio.Event().wait())  # type: ignore[arg-type]


def receives() -> None:
    dist.recv(gradients, (rank + 1) % size)


def held_interpreter() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")  # for ever, with the interpreter's lock


def busy() -> None:
    while True:
        sum(range(1000))


def signal_pause() -> None:
    signal.pause()


for number in range(at):
    dist.all_reduce(gradients)
    print("step", number, flush=True)
    time.sleep(0.05)
Path(f"hung-{rank}").write_text(str(time.time()))
if rank == odd:
    globals()[way]()
if way == "missing_barrier":
    dist.barrier()
elif way == "wrong_order":
    dist.all_reduce(gradients, group=pairs[0])
else:
    dist.all_reduce(gradients)
Path(f"passed-{rank}").touch()
