"""What a test has at hand: its data, the comparison, and the word to the watchdog that it has arrived."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Callable, NamedTuple, Optional, TypeVar

import torch
import torch.distributed as dist

from ..analysis.payloads import payload_sizes
from ..metric_rows import WrongElement
from . import contributions as data
from . import payload as tensors
from .job import SLACK, SuiteJob
from .options import Options
from .payload import Pattern
from .watchdog import Watchdog

UNSUPPORTED = re.compile(
    r"(?i)gloo.{0,80}(not support|unsupported)|no support for .{0,80}gloo|not implemented|invalid scalar type"
    r"|has no attribute"
)


T = TypeVar("T")


class NotSupported(Exception):
    """The test can't run here; the text says why."""


class Unusable(Exception):
    """The process group can't be made as asked; the text says why."""


class LabGroup(NamedTuple):
    """Ranks, and their process group; None is the default one."""

    ranks: Sequence[int]
    process_group: Optional[dist.ProcessGroup] = None


class Lab:
    """One a rank, for all tests. `size` is the largest payload in bytes; `nodes` are the ranks of each node."""

    def __init__(self, job: SuiteJob, watch: Watchdog, options: Options) -> None:
        self.job = job
        self.watch = watch
        self.size = options.size
        self.quick = options.quick
        self.patience = timedelta(seconds=options.timeout + SLACK)  # of process groups: the watchdog speaks first
        self.rank = job.rank
        self.world = job.world
        self.everyone = LabGroup(range(job.world))
        self.nodes: dict[int, list[int]] = {}
        self.device = torch.device("cpu")
        self.backend = "gloo"
        self.untested: list[str] = []
        self.dtypes: list[str] = []
        self.payloads: list[int] = []
        self.begin("")

    def begin(self, test: str) -> None:
        """Forget the last test."""
        self.test = test
        self.difference: WrongElement | None = None
        self.arrived: float | None = None
        self.start = 0.0

    def line_up(self, name: str) -> None:
        """Wait for the others through the store: what went before (imports, building data) makes no rank late."""
        self.job.exchange(f"lined_up/{self.test}/{name}", 0)
        self.start = self.watch.elapsed()

    def renew(self, name: str) -> None:
        """Give the next part of a test a limit of its own."""
        self.line_up(name)
        self.watch.renew()
        self.watch.part = f" at {name}"
        self.start = 0.0

    def settle(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Wait for all ranks; NCCL's barrier has to know the device."""
        devices = [self.device.index] if self.backend == "nccl" else None
        dist.barrier(device_ids=devices)
        self.settle()

    @contextmanager
    def where_supported(self, what: str) -> Iterator[None]:
        """Skip what Gloo, or an older torch, does not have. NCCL has everything: there it is a failure."""
        try:
            yield
        except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
            if self.backend == "gloo" and UNSUPPORTED.search(str(error)):
                reason = str(error).strip().splitlines()[0]
                if what != self.test:  # its name stands before the reason already
                    reason = f"{what}: {reason}"
                raise NotSupported(reason) from None
            raise

    def pick(self, quick: T, usual: T) -> T:
        """Choose how much to test: less where the test is to be quick."""
        if self.quick:
            return quick
        return usual

    def sizes(self, quick: Sequence[int], growth: int) -> list[int]:
        """List payloads in bytes: these where the test is to be quick, else from the smallest to the largest."""
        if self.quick:
            return [min(size, self.size) for size in quick]
        return payload_sizes(self.size, growth)

    def leave_out(self, what: str) -> None:
        """Note that this was not tested, for the statement."""
        if what not in self.untested:
            self.untested.append(what)

    def use(self, *dtypes: str) -> str:
        """Note that these types were tested; give the words for the line."""
        self.dtypes += [dtype for dtype in dtypes if dtype not in self.dtypes]
        return " ".join(dtypes)

    def arrive(self, turn: int = 0) -> None:
        """Tell the watchdog that a collective comes next."""
        if self.arrived is None:
            self.arrived = self.watch.elapsed() - self.start
        self.watch.move(turn)

    # -- what this rank gives --------------------------------------------------------------------------

    def give(self, pattern_of: Callable[[int], Pattern], count: int, dtype: str) -> torch.Tensor:
        """Make this rank's contribution from the pattern of any rank."""
        return tensors.build(pattern_of(self.rank), count, dtype, self.device)

    def give_moved(self, turn: int, count: int, dtype: str) -> torch.Tensor:
        """Make what is carried as it is."""
        modulus = self.modulus(dtype)
        return self.give(lambda rank: tensors.moved(rank, turn, modulus), count, dtype)

    def give_shared(self, turn: int, count: int, dtype: str, added: int) -> torch.Tensor:
        """Make what is added up over `added` ranks."""
        modulus = self.modulus(dtype, added)
        return self.give(lambda rank: tensors.repeated(data.shared_table(rank, turn, modulus)), count, dtype)

    def empty(self, count: int, dtype: str) -> torch.Tensor:
        """Make room for a result, filled with zeros, which are never right."""
        return torch.zeros(count, dtype=tensors.dtype_of(dtype), device=self.device)

    def empty_blocks(self, count: int, dtype: str, group: LabGroup) -> list[torch.Tensor]:
        """Make room for a block of each rank."""
        return [self.empty(count, dtype) for _ in group.ranks]

    def modulus(self, dtype: str, added: int = 1) -> int:
        """Find the largest prime for which the type holds the sum of so many."""
        modulus = data.modulus_of(dtype, added)
        if modulus is None:
            raise NotSupported(f"{dtype} holds no exact sum over {added} ranks")
        return modulus

    # -- what has to come ------------------------------------------------------------------------------

    def check(self, result: torch.Tensor, pattern: Pattern, turn: int, kind: str, source: int | None = None) -> None:
        """Compare; the first difference of a test is kept, and the test goes on so that no other rank waits."""
        wrong = tensors.difference(result, pattern)
        if wrong:
            self.note(turn, kind, *wrong, source=source)

    def check_moved(self, result: torch.Tensor, source: int, turn: int, dtype: str, shift: int = 0) -> None:
        """Check a block that a rank sent, from a place on."""
        self.check(result, tensors.moved(source, turn, self.modulus(dtype), shift), turn, dtype, source)

    def check_blocks(self, blocks: Sequence[torch.Tensor], turn: int, dtype: str, group: LabGroup) -> None:
        """Check a block of each rank."""
        for source, block in zip(group.ranks, blocks):
            self.check_moved(block, source, turn, dtype)

    def check_sum(self, result: torch.Tensor, group: LabGroup, turn: int, dtype: str, shift: int = 0) -> None:
        """Check a sum; where it is wrong, try whether one rank's share explains it."""
        ranks = list(group.ranks)
        modulus = self.modulus(dtype, len(ranks))
        wrong = tensors.difference(result, tensors.repeated(data.reduced(sum, ranks, turn, modulus, shift)))
        if not wrong:
            return
        start = torch.nan_to_num(result.reshape(-1)[: data.PERIOD].double()).round().long().tolist()
        culprit = data.culprit(start, ranks, turn, modulus, shift)
        if culprit is None:
            self.note(turn, f"{dtype} sum", *wrong)
            return
        if self.difference and self.difference.source is None:
            self.difference = None  # this one says more
        self.note(turn, f"{dtype} sum", *wrong, source=culprit[0], words=culprit[1])

    def check_object(self, result: object, expected: object, turn: int, source: int) -> None:
        """Check a string or another object."""
        if result == expected:
            return
        index = 0
        if isinstance(result, str) and isinstance(expected, str):
            shorter = min(len(result), len(expected))
            index = next((at for at in range(shorter) if result[at] != expected[at]), shorter)
        kind = type(expected).__name__
        self.note(turn, kind, index, repr(expected)[:60], repr(result)[:60], source=source)

    def note(
        self, turn: int, kind: str, index: int, expected: str, actual: str, source: int | None = None, words: str = ""
    ) -> None:
        """Keep the first difference."""
        if self.difference is None:
            self.difference = WrongElement(
                self.rank, turn, kind=kind, index=index, expected=expected, found=actual, source=source, note=words
            )


Test = Callable[[Lab], str]  # gives what the PASS line shows
