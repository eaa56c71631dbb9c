"""The wire of a pair over NCCL: a communicator of the two leaders' GPUs, made for the pair and aborted after it.

NCCL's calls can't be given a time limit each, and one that waits for a dead link blocks its thread in C++. So the
pair is measured in a thread of its own: at the limit the communicator is aborted, also in a thread, and both are left
behind. The process goes on with the next pair and a new communicator.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from .pairwise import BRISK, MESSAGE, SMALLEST, Dead, Figures, Marks, Plan, measure

LARGEST = 256 << 20  # bytes of a piece
ABORT = 3.0  # seconds given to an abort; one that takes longer is left behind
# The watchdog of the process group would end the process at a timeout: here a timeout is a result.
QUIET = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


def usable(local_rank: int) -> bool:
    """Whether this rank has a GPU that works, and torch has NCCL; creates the GPU's context, which takes seconds."""
    if not (dist.is_nccl_available() and torch.cuda.is_available() and local_rank < torch.cuda.device_count()):
        return False
    try:
        torch.zeros(1, device=f"cuda:{local_rank}")
        torch.cuda.synchronize(local_rank)
    except RuntimeError:
        return False
    return True


class Nccl:
    """One side of the pair. Ends are told inside the messages: a ping's first byte, the size before a piece.
    `settle` waits until the device has done what it was given."""

    def __init__(self, group: Any, other: int, device: torch.device, settle: Callable[[], None]) -> None:
        self.group, self.other, self.settle = group, other, settle
        self.small = torch.zeros(MESSAGE, dtype=torch.uint8, device=device)
        self.size = torch.zeros(1, dtype=torch.int64, device=device)
        self.large = torch.zeros(LARGEST, dtype=torch.uint8, device=device)

    def _send(self, tensor: torch.Tensor) -> None:
        self.group.send([tensor], self.other, 0).wait()
        self.settle()

    def _receive(self, tensor: torch.Tensor) -> None:
        self.group.recv([tensor], self.other, 0).wait()
        self.settle()

    def ping(self, count: int, seconds: float) -> list[float]:
        trips: list[float] = []
        until = time.monotonic() + seconds
        self.small.fill_(1)
        self.settle()
        for _ in range(count):
            began = time.perf_counter()
            self._send(self.small)
            self._receive(self.small)
            trips.append(time.perf_counter() - began)
            if time.monotonic() > until:
                break
        self.tell(False)
        return trips

    def answer(self) -> None:
        while self.hear():
            self._send(self.small)

    def push(self, seconds: float) -> None:
        until, size = time.monotonic() + seconds, SMALLEST
        while (began := time.monotonic()) < until:
            self.size.fill_(size)
            self._send(self.size)
            self._send(self.large[:size])
            if time.monotonic() - began < BRISK:
                size = min(size * 2, LARGEST)
        self.size.fill_(0)
        self._send(self.size)

    def pull(self, warm: float) -> list[float]:
        marks = Marks()
        while True:
            self._receive(self.size)
            size = int(self.size.item())
            if not size:
                return marks.rate(warm)
            self._receive(self.large[:size])
            marks.add(size)

    def tell(self, more: bool) -> None:
        self.small.fill_(int(more))
        self._send(self.small)

    def hear(self) -> bool:
        self._receive(self.small)
        return bool(self.small[0].item())


class Attempt:
    """One pair's measurement in its thread; what it found, or why not."""

    def __init__(self, store: Store, side: int, device: torch.device, plan: Plan, limit: float) -> None:
        self.store, self.side, self.device, self.plan, self.limit = store, side, device, plan, limit
        self.group: Any = None
        self.figures: Figures | None = None
        self.problem = ""

    def run(self) -> None:
        try:
            torch.cuda.set_device(self.device)  # a thread's own
            self.store.set_timeout(timedelta(seconds=self.limit))
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=self.limit)
            self.group = dist.ProcessGroupNCCL(self.store, self.side, 2, options)
            wire = Nccl(self.group, 1 - self.side, self.device, torch.cuda.current_stream(self.device).synchronize)
            self.figures = measure(wire, self.side == 0, self.plan)
        except Exception as error:  # NCCL's own errors are RuntimeErrors and subclasses that differ by version
            text = str(error).strip()
            self.problem = text.splitlines()[0] if text else type(error).__name__

    def abort(self) -> None:
        """Frees the communicator; its name differs by version."""
        names = ("abort", "_abort", "_shutdown", "shutdown")
        found = next((f for name in names if (f := getattr(self.group, name, None)) is not None), None)
        if found is not None:
            _bounded(found, ABORT)


def over_nccl(store: Store, side: int, local_rank: int, plan: Plan, limit: float) -> Figures:
    """Measure a pair; `store` is of this pair and this round alone. Dead where it fails or does not end in time."""
    os.environ.update(QUIET)
    attempt = Attempt(store, side, torch.device("cuda", local_rank), plan, limit)
    ended = _bounded(attempt.run, limit)
    attempt.abort()
    if attempt.figures is not None:
        return attempt.figures
    raise Dead(attempt.problem if ended else f"timed out after {limit:g} s: NCCL got nothing through")


def _bounded(work: Callable[[], object], seconds: float) -> bool:
    """Whether it ended in time; else its thread is left behind (a daemon: it does not keep the process)."""
    thread = threading.Thread(target=work, daemon=True, name="allranks pair")
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
