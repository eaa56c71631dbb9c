"""The wire of a pair over NCCL: a communicator of the two leaders' GPUs, made for the pair and aborted after it.

NCCL's calls can't be given a time limit each, and one that waits for a dead link blocks its thread in C++. So the
pair is measured in a thread of its own: at the limit the communicator is aborted, also in a thread, and both are left
behind. The process goes on with the next pair and a new communicator.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, ContextManager

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from allranks.text import error_line

from .wire import MESSAGE, ByteArrivals, DeadLink, MeasurePlan, SideFigures, measure

LARGEST = 256 << 20  # bytes of a piece
ABORT = 3.0  # seconds given to an abort; one that takes longer is left behind
ABORTS = ("abort", "_abort", "_shutdown", "shutdown")  # its names in torch's versions
# The watchdog of the process group would end the process at a timeout: here a timeout is a result.
QUIET = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


def usable(local_rank: int) -> bool:
    """Tell whether this rank has a GPU that works, and torch NCCL; create the GPU's context, which takes seconds."""
    if not (dist.is_nccl_available() and torch.cuda.is_available() and local_rank < torch.cuda.device_count()):
        return False
    try:
        torch.zeros(1, device=f"cuda:{local_rank}")
        torch.cuda.synchronize(local_rank)
    except RuntimeError:
        return False
    return True


class NcclWire:
    """One side of the pair. Flags are a message's first byte, a piece has its size before it.

    `group` is a process group's backend, whose send and recv torch's stubs leave out.
    `settle` waits until the device has done what it was given.
    """

    largest = LARGEST

    def __init__(self, group: Any, other: int, device: torch.device, settle: Callable[[], None]) -> None:
        self.group = group
        self.other = other
        self.settle = settle
        self.flags = [torch.full((MESSAGE,), value, dtype=torch.uint8, device=device) for value in (0, 1)]
        self.small = torch.zeros(MESSAGE, dtype=torch.uint8, device=device)
        self.size = torch.zeros(1, dtype=torch.int64, device=device)
        self.large = torch.zeros(LARGEST, dtype=torch.uint8, device=device)
        settle()

    def _send(self, tensor: torch.Tensor) -> None:
        self.group.send([tensor], self.other, 0).wait()
        self.settle()

    def _receive(self, tensor: torch.Tensor) -> None:
        self.group.recv([tensor], self.other, 0).wait()
        self.settle()

    def step(self, lost: str) -> ContextManager[None]:
        """Do nothing: all of a pair's time is limited from outside."""
        return nullcontext()

    def trip(self) -> None:
        """Send a small message and receive the answer."""
        self._send(self.flags[True])
        self._receive(self.small)

    def send_flag(self, more: bool) -> None:
        """Send a small message that says whether more follows."""
        self._send(self.flags[more])

    def receive_flag(self) -> bool:
        """Receive one; tell what it says."""
        self._receive(self.small)
        return bool(self.small[0].item())

    def send_piece(self, size: int) -> None:
        """Send a piece of a stream; 0 bytes end it."""
        self.size.fill_(size)
        self._send(self.size)
        if size:
            self._send(self.large[:size])

    def receive_piece(self, arrivals: ByteArrivals) -> bool:
        """Receive one; tell whether the stream goes on."""
        self._receive(self.size)
        size = int(self.size.item())
        if size:
            self._receive(self.large[:size])
            arrivals.add(size)
        return bool(size)


class PairAttempt:
    """One pair's measurement in its thread: the figures, or why there are none."""

    def __init__(self, store: Store, side: int, device: torch.device, plan: MeasurePlan, limit: float) -> None:
        self.store = store
        self.side = side
        self.device = device
        self.plan = plan
        self.limit = timedelta(seconds=limit)
        self.group: dist.ProcessGroupNCCL | None = None
        self.figures: SideFigures | None = None
        self.problem = ""

    def run(self) -> None:
        """Make the communicator and measure."""
        try:
            torch.cuda.set_device(self.device)  # a thread's own
            self.store.set_timeout(self.limit)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self.limit
            group = dist.ProcessGroupNCCL(self.store, self.side, 2, options)
            self.group = group
            settle = torch.cuda.current_stream(self.device).synchronize
            self.figures = measure(NcclWire(group, 1 - self.side, self.device, settle), self.side == 0, self.plan)
        except Exception as error:  # NCCL's own errors are RuntimeErrors and subclasses that differ by version
            self.problem = error_line(error)

    def abort(self) -> None:
        """Free the communicator."""
        for name in ABORTS:
            abort = getattr(self.group, name, None)
            if abort is not None:
                _ends_within(ABORT, abort)
                return


def over_nccl(store: Store, side: int, local_rank: int, plan: MeasurePlan, limit: float) -> SideFigures:
    """Measure a pair; `store` is of this pair and this round alone.

    Raises DeadLink where it fails or does not end in time.
    """
    os.environ.update(QUIET)
    attempt = PairAttempt(store, side, torch.device("cuda", local_rank), plan, limit)
    ended = _ends_within(limit, attempt.run)
    attempt.abort()
    if attempt.figures is not None:
        return attempt.figures
    raise DeadLink(attempt.problem if ended else f"timed out after {limit:g} s: NCCL got nothing through")


def _ends_within(seconds: float, work: Callable[[], object]) -> bool:
    """Tell whether it ended in time; else its thread is left behind (a daemon: it does not keep the process)."""
    thread = threading.Thread(target=work, daemon=True, name="allranks pair")
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
