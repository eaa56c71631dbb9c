"""The suite bandwidth: how long each collective takes by size, and what that is in bytes a second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Callable

import torch
import torch.distributed as dist

from allranks.text import format_size_option

from ..analysis.rates import UNSPLIT, bandwidth_line, bandwidth_row, compare_with_link
from ..metric_rows import BandwidthRow
from .cases.rounds import ALL_GATHER, REDUCE_SCATTER, newest, ring, run_batch
from .lab import Lab, NotSupported
from .sequence import Runner

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "gather", "sendrecv")
QUICK = ("all_reduce", "all_gather")
QUICK_SIZES = (64 << 10, 4 << 20)
GROWTH = 4
WIDTH = 4  # bytes of a float32
WARM = 3  # rounds that are not counted; one where a round is long
LONG = 0.5  # seconds of a round that is long
FEWEST = 5  # rounds
MOST = 50
PER_SIZE = 1.5  # seconds that a size gets, as far as FEWEST allows
BUDGET = 40.0  # seconds that a collective gets; larger sizes are left out, and the statement says so

Call = Callable[[], object]


def run(runner: Runner, collectives: Sequence[str]) -> None:
    """Measure these collectives, and compare the best rate with the link's."""
    sweep = Sweep(runner)
    runner.run({name: partial(sweep.measure, name) for name in collectives}, COLLECTIVES, show_passed=False)
    if sweep.best:
        facts = runner.group.facts
        links = [fact.links[runner.lab.backend] for fact in facts]
        runner.report.remarks.append(compare_with_link(sweep.best, links, [fact.node for fact in facts]))


class Sweep:
    """All sizes of one collective after the other, on two flat buffers of the largest size."""

    def __init__(self, runner: Runner) -> None:
        self.report = runner.report
        self.lab = runner.lab
        self.sizes = self.lab.sizes(QUICK_SIZES, GROWTH)
        self.buffers: list[torch.Tensor] = []
        self.best: BandwidthRow | None = None

    def measure(self, collective: str, lab: Lab) -> str:
        """Print the table of a collective; what is left out for want of time is said at the end."""
        if collective == "sendrecv" and lab.world < 2:
            raise NotSupported("one rank alone has no other rank to send to")
        began = time.monotonic()
        spent = 0.0
        slowest_round = 0.0
        for turn, size in enumerate(self.sizes):
            if turn and spent + slowest_round * GROWTH * (FEWEST + 2) > BUDGET:
                larger = f"{collective} from {format_size_option(size)} on"
                lab.leave_out(f"{larger}: it would take longer than {BUDGET:g} s")
                break
            lab.renew(format_size_option(size))
            call, actual_size = self._prepare(collective, size)
            lab.arrive(turn)
            with lab.where_supported(collective):
                seconds = self._time(call)
            self._add(bandwidth_row(collective, actual_size, lab.world, seconds))
            spent = self._slowest([time.monotonic() - began])[0]
            slowest_round = max(seconds)
            lab.payloads.append(actual_size)
        return ""

    def _add(self, row: BandwidthRow) -> None:
        self.report.write(row)
        self.report.say(bandwidth_line(row))
        if row.collective == "all_reduce" and (self.best is None or row.busbw > self.best.busbw):
            self.best = row

    def _time(self, call: Call) -> list[float]:
        """Give the slowest rank's time of each round; every rank counts the same rounds."""
        if self.lab.backend == "nccl":
            call = partial(_synchronized, call, self.lab.device)
        if self._slowest(self._rounds(call, 1))[0] < LONG:
            self._rounds(call, WARM - 1)
        first = self._slowest(self._rounds(call, 1))
        count = FEWEST
        if not self.lab.quick:
            count = max(FEWEST, min(MOST, int(PER_SIZE / max(first[0], 1e-9))))
        return first + self._slowest(self._rounds(call, count - 1))

    def _rounds(self, call: Call, count: int) -> list[float]:
        """Give this rank's times. Only the collective stands between the two readings of the clock."""
        clock = time.perf_counter
        barrier = self.lab.barrier
        renew = self.lab.watch.renew
        seconds = []
        for _ in range(count):
            renew()
            barrier()
            began = clock()
            call()
            ended = clock()
            seconds.append(ended - began)
        return seconds

    def _slowest(self, seconds: list[float]) -> list[float]:
        times = torch.tensor(seconds, dtype=torch.float64, device=self.lab.device)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        return [float(value) for value in times.tolist()]

    def _prepare(self, collective: str, size: int) -> tuple[Call, int]:
        world = self.lab.world
        rank = self.lab.rank
        if not self.buffers:
            count = max(self.sizes[-1] // WIDTH, world)
            self.buffers = [torch.empty(count, device=self.lab.device).fill_(0.0) for _ in range(2)]
        block = max(1, size // WIDTH // world)
        count = block * world
        if collective == "all_reduce" or collective in UNSPLIT:
            count = max(1, size // WIDTH)
        give, result = (buffer[:count] for buffer in self.buffers)
        if collective == "all_gather":
            call: Call = partial(newest(*ALL_GATHER), result, give[:block])
        elif collective == "reduce_scatter":
            call = partial(newest(*REDUCE_SCATTER), result[:block], give)
        elif collective == "gather":
            blocks = []
            if rank == 0:
                blocks = list(result.chunk(world))
            call = partial(dist.gather, give[:block], blocks or None, 0)
        elif collective == "sendrecv":
            call = partial(run_batch, ring(give, (rank + 1) % world, result, (rank - 1) % world))
        elif collective == "all_to_all":
            call = partial(dist.all_to_all_single, result, give)
        elif collective == "broadcast":
            call = partial(dist.broadcast, give, 0)
        else:
            call = partial(dist.all_reduce, give)
        return call, count * WIDTH


def _synchronized(call: Call, device: torch.device) -> None:
    call()
    torch.cuda.synchronize(device)
