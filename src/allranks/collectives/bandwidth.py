"""The suite bandwidth: how long each collective takes by size, and what that is in bytes a second."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .factors import rates
from .families.blocks import newest
from .lab import Lab, NotSupported, Test
from .link import Link, compare, say_rate
from .runner import Runner
from .sizes import SMALLEST, say_size

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "gather", "sendrecv")
QUICK, QUICK_SIZES = ("all_reduce", "all_gather"), (64 << 10, 4 << 20)
GROWTH = 4
WIDTH = 4  # bytes of a float32
WARM = 3  # rounds that are not counted; one where a round is long
LONG = 0.5  # seconds of a round that is long
FEWEST, MOST = 5, 50  # rounds
PER_SIZE = 1.5  # seconds that a size gets, as far as FEWEST allows
BUDGET = 40.0  # seconds that a collective gets; larger sizes are left out, and the statement says so

Call = Callable[[], Any]


def chosen(only: Sequence[str], quick: bool) -> list[str]:
    """The collectives that are asked for. ValueError for one that there is not."""
    unknown = [name for name in only if name not in COLLECTIVES]
    if unknown:
        raise ValueError(f"--only: no collective {', '.join(unknown)}; there are {', '.join(COLLECTIVES)}")
    return [name for name in COLLECTIVES if (name in only if only else not quick or name in QUICK)]


def sizes_up_to(largest: int) -> list[int]:
    """1 KB, four times as much each time, and the largest."""
    found, size = [], SMALLEST
    while size < largest:
        found.append(size)
        size *= GROWTH
    return [*found, largest]


def rounds_for(seconds: float, quick: bool = False) -> int:
    """How many rounds, from the time of the first."""
    return FEWEST if quick else max(FEWEST, min(MOST, int(PER_SIZE / max(seconds, 1e-9))))


class Sweep:
    """All sizes of one collective after the other. `give` and `got` are flat buffers of the largest size."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.lab = runner, runner.lab
        self.buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        self.best: tuple[float, str] = (0.0, "")

    def test(self, collective: str) -> Test:
        """A collective as a test."""
        return Test(collective, partial(self.measure, collective))

    def measure(self, collective: str, lab: Lab) -> str:
        """Its table; what is left out for want of time is said at the end."""
        if collective == "sendrecv" and lab.world < 2:
            raise NotSupported("one rank alone has nobody to send to")
        sizes = [min(size, lab.size) for size in QUICK_SIZES] if lab.quick else sizes_up_to(lab.size)
        began, spent, last = time.monotonic(), 0.0, 0.0
        for turn, size in enumerate(sizes):
            if turn and spent + last * GROWTH * (FEWEST + 2) > BUDGET:
                lab.leave_out(f"{collective} from {say_size(size)} on: it would take longer than {BUDGET:g} s")
                break
            lab.renew(say_size(size))
            call, real = self.call(collective, size)
            lab.arrive(turn)
            with lab.where_supported(collective):
                seconds = self.timed(call)
            self.tell(collective, real, seconds)
            spent, last = float(self.slowest([time.monotonic() - began])[0]), max(seconds)
            lab.payloads.append(real)
        return ""

    def timed(self, call: Call) -> list[float]:
        """The slowest rank's time of each round; every rank counts the same rounds."""
        if self.lab.backend == "nccl":
            call = partial(_synchronized, call, self.lab.device)
        if self.slowest(self.rounds(call, 1))[0] < LONG:
            self.rounds(call, WARM - 1)
        first = self.slowest(self.rounds(call, 1))
        return first + self.slowest(self.rounds(call, rounds_for(first[0], self.lab.quick) - 1))

    def rounds(self, call: Call, count: int) -> list[float]:
        """This rank's times. Nothing but the collective is between the two looks at the clock."""
        clock, barrier, renew = time.perf_counter, self.lab.barrier, self.lab.watch.renew
        seconds = []
        for _ in range(count):
            renew()
            barrier()
            began = clock()
            call()
            ended = clock()
            seconds.append(ended - began)
        return seconds

    def slowest(self, seconds: list[float]) -> list[float]:
        """Each place's maximum over the ranks."""
        times = torch.tensor(seconds, dtype=torch.float64, device=self.lab.device)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        found: list[float] = times.tolist()
        return found

    def call(self, collective: str, size: int) -> tuple[Call, int]:
        """The collective on buffers of a size, ready to be called, and the size that it really has."""
        lab, world = self.lab, self.lab.world
        if self.buffers is None:
            count = max(lab.size // WIDTH, world)
            first, second = (torch.empty(count, device=lab.device).fill_(0.0) for _ in range(2))
            self.buffers = first, second
        block = max(1, size // WIDTH // world)
        whole = block * world
        if collective in ("all_reduce", "broadcast", "sendrecv"):
            whole = max(1, size // WIDTH)
        give, got = self.buffers[0][:whole], self.buffers[1][:whole]
        if collective == "all_gather":
            return partial(newest("all_gather_single", "all_gather_into_tensor"), got, give[:block]), whole * WIDTH
        if collective == "reduce_scatter":
            return partial(newest("reduce_scatter_single", "reduce_scatter_tensor"), got[:block], give), whole * WIDTH
        if collective == "gather":
            blocks = list(got.chunk(world)) if lab.rank == 0 else None
            return partial(dist.gather, give[:block], blocks, 0), whole * WIDTH
        if collective == "sendrecv":
            ops = [dist.P2POp(dist.isend, give, (lab.rank + 1) % world),
                   dist.P2POp(dist.irecv, got, (lab.rank - 1) % world)]  # fmt: skip
            return partial(_both_ways, ops), whole * WIDTH
        if collective == "all_to_all":
            return partial(dist.all_to_all_single, got, give), whole * WIDTH
        if collective == "broadcast":
            return partial(dist.broadcast, give, 0), whole * WIDTH
        return partial(dist.all_reduce, give), whole * WIDTH

    def tell(self, collective: str, size: int, seconds: list[float]) -> None:
        """The line of the table, and the row."""
        found = rates(collective, size, self.lab.world, seconds)
        row = {"schema": 1, "kind": "bandwidth", "collective": collective, "size": size, "ranks": self.lab.world,
               **found, "rounds": len(seconds)}  # fmt: skip
        self.runner.report.write(json.dumps(row))
        self.runner.report.say(line(collective, size, found))
        if collective == "all_reduce" and found["busbw"] > self.best[0]:
            self.best = found["busbw"], say_size(size)


def _both_ways(ops: list[Any]) -> None:
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def _synchronized(call: Call, device: torch.device) -> None:
    call()
    torch.cuda.synchronize(device)


def line(collective: str, size: int, found: dict[str, float]) -> str:
    """`all_reduce       64MB   12.3 ms (11.9-13.1)   algbw 5.2 GB/s   busbw 7.8 GB/s`."""
    factor, unit = next(((f, u) for f, u in ((1.0, "s"), (1e3, "ms")) if found["median"] * f >= 1), (1e6, "µs"))
    median, low, high = (f"{found[name] * factor:.3g}" if found[name] * factor < 1000 else f"{found[name] * factor:.0f}"
                         for name in ("median", "q1", "q3"))  # fmt: skip
    time_ = f"{median} {unit} ({low}-{high})"
    return (f"{collective:<15} {say_size(size):>9}  {time_:<26} algbw {say_rate(found['algbw']):>9}   "
            f"busbw {say_rate(found['busbw']):>9}")  # fmt: skip


def run(runner: Runner, collectives: Sequence[str]) -> int:
    """Exit code."""
    report, sweep = runner.report, Sweep(runner)
    report.plan(collectives, COLLECTIVES)
    intact = runner.run([report.setup.test()])
    report.note_refusal()
    intact = intact and runner.run([sweep.test(name) for name in collectives], show=False)
    if sweep.best[1]:
        facts = report.setup.facts
        links = [Link(*fact["links"][runner.lab.backend]) for fact in facts]
        report.remarks.append(compare(*sweep.best, links, [fact["node"] for fact in facts]))
    return runner.finish(intact)
