"""What a test has at hand: its own data, the comparison, and the word to the watchdog that it has arrived."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from . import data, tensors
from .double import Double
from .job import SPARE, Job
from .tensors import Pattern
from .watch import Watchdog

UNSUPPORTED = re.compile(
    r"(?i)gloo.{0,80}(not support|unsupported)|not implemented|invalid scalar type|has no attribute"
)


class NotSupported(Exception):
    """The test can't run here; the text says why."""


class Unusable(Exception):
    """The process group can't be made as asked; the text says why."""


class Lab:
    """One a rank, for all tests. `size` is the largest payload in bytes, `limit` the seconds of a test."""

    def __init__(self, job: Job, watch: Watchdog, double: Double | None, size: int, limit: float) -> None:
        self.job, self.watch, self.double, self.size, self.limit = job, watch, double, size, limit
        self.rank, self.world = job.rank, job.world
        self.everyone = list(range(job.world))
        self.device, self.backend = torch.device("cpu"), "gloo"
        self.quick = False
        self.untested: list[str] = []
        self.dtypes: list[str] = []
        self.payloads: list[int] = []
        self.begin("")

    @property
    def patience(self) -> timedelta:
        """What process groups are given: the watchdog speaks first."""
        return timedelta(seconds=self.limit + SPARE)

    def begin(self, test: str) -> None:
        """Forget the last test."""
        self.test = test
        self.failure: dict[str, Any] | None = None
        self.arrived: float | None = None
        self.start = 0.0

    def line_up(self, name: str) -> None:
        """Wait for the others through the store: what went before (imports, building data) makes no rank late."""
        self.job.exchange(f"lined_up/{self.test}/{name}", 0)
        self.start = self.watch.elapsed()

    def renew(self, name: str) -> None:
        """The next part of a test has a limit of its own."""
        self.line_up(name)
        self.watch.renew()
        self.watch.part = f" at {name}"
        self.start = 0.0

    def settle(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self, group: Any = None) -> None:
        """NCCL's barrier has to know the device."""
        dist.barrier(group, device_ids=[self.device.index] if self.backend == "nccl" else None)
        self.settle()

    @contextmanager
    def where_supported(self, what: str) -> Iterator[None]:
        """What gloo, or an older torch, has not is no failure. NCCL has everything: there it is one."""
        try:
            yield
        except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
            if self.backend == "gloo" and UNSUPPORTED.search(str(error)):
                raise NotSupported(f"{what}: {str(error).strip().splitlines()[0]}") from None
            raise

    def leave_out(self, what: str) -> None:
        """Say at the end that this was not tested."""
        if what not in self.untested:
            self.untested.append(what)

    def use(self, *dtypes: str) -> str:
        """These types were tested; the words for the line."""
        self.dtypes += [dtype for dtype in dtypes if dtype not in self.dtypes]
        return " ".join(dtypes)

    def arrive(self, turn: int = 0) -> None:
        """Right before a collective: tell the watchdog. (And where the test double misbehaves.)"""
        if self.double:
            self.double.behave(self.test)
        if self.arrived is None:
            self.arrived = self.watch.elapsed() - self.start
        self.watch.arrive(turn)

    # What this rank gives.
    def give(self, own: Callable[[int], Pattern], count: int, dtype: str) -> torch.Tensor:
        """This rank's contribution, from the pattern of any rank."""
        wrong = self.double.data(self.test) if self.double else ""
        pattern = own((self.rank + 1) % self.world if wrong == "wrong_block" else self.rank)
        if wrong == "zeros":
            pattern = tensors.nothing()
        if wrong == "off_by_one":
            pattern = pattern.plus(1)
        return tensors.build(pattern, count, dtype, self.device)

    def give_moved(self, turn: int, count: int, dtype: str) -> torch.Tensor:
        """What is carried as it is."""
        modulus = self.modulus(dtype)
        return self.give(lambda rank: tensors.moved(rank, turn, modulus), count, dtype)

    def give_shared(self, turn: int, count: int, dtype: str, added: int, shift: int = 0) -> torch.Tensor:
        """What is added up over `added` ranks."""
        modulus = self.modulus(dtype, added)
        return self.give(lambda rank: tensors.repeated(data.table(rank, turn, modulus)).shifted(shift), count, dtype)

    def pretended(self) -> list[int]:
        """Whose strings this rank sends: its own, unless the test double wants others."""
        wrong = self.double.data(self.test) if self.double else ""
        return [(self.rank + 1) % self.world if wrong == "wrong_block" else self.rank]

    def give_texts(self, sources: Sequence[int], turn: int) -> list[str]:
        """This rank's strings."""
        wrong = self.double.data(self.test) if self.double else ""
        own = [data.text(source, turn) for source in sources]
        return ["" if wrong == "zeros" else text + "x" * (wrong == "off_by_one") for text in own]

    def empty(self, count: int, dtype: str) -> torch.Tensor:
        """Where a result goes: filled with zeros, which are never right."""
        return torch.zeros(count, dtype=tensors.DTYPES[dtype], device=self.device)

    def modulus(self, dtype: str, added: int = 1) -> int:
        """The largest prime for which the type holds the sum of so many."""
        found = data.modulus_of(dtype, added)
        if found is None:
            raise NotSupported(f"{dtype} holds no exact sum over {added} ranks")
        return found

    # What has to come.
    def check(self, found: torch.Tensor, due: Pattern, turn: int, kind: str, source: int | None = None) -> bool:
        """Compare; the first difference of a test is kept, and the test goes on so that no other rank waits."""
        wrong = tensors.difference(found, due)
        if wrong:
            self.note(turn, kind, *wrong, source=source)
        return wrong is None

    def check_moved(self, found: torch.Tensor, source: int, turn: int, dtype: str, shift: int = 0) -> None:
        """A block that a rank sent, from a place on."""
        due = tensors.moved(source, turn, self.modulus(dtype)).shifted(shift)
        self.check(found, due, turn, dtype, source)

    def check_sum(self, found: torch.Tensor, ranks: Sequence[int], turn: int, dtype: str, shift: int = 0) -> None:
        """A sum: where it is wrong, look whether one rank's share explains it."""
        modulus = self.modulus(dtype, len(ranks))
        wrong = tensors.difference(found, tensors.repeated(data.reduced("sum", list(ranks), turn, modulus, shift)))
        if not wrong:
            return
        start = torch.nan_to_num(found.reshape(-1)[: data.PERIOD].double()).round().long().tolist()
        blamed = data.culprit(start, list(ranks), turn, modulus, shift)
        if blamed and self.failure and self.failure["source"] is None:
            self.failure = None  # this one says more
        self.note(turn, f"{dtype} sum", *wrong, source=blamed[0] if blamed else None, words=blamed[1] if blamed else "")

    def check_max(self, found: torch.Tensor, ranks: Sequence[int], turn: int, dtype: str) -> None:
        """A maximum."""
        due = data.reduced("max", list(ranks), turn, self.modulus(dtype, len(ranks)))
        self.check(found, tensors.repeated(due), turn, f"{dtype} max")

    def check_object(self, found: object, due: object, turn: int, source: int) -> None:
        """The same for strings and other objects."""
        if found == due:
            return
        index = 0
        if isinstance(found, str) and isinstance(due, str):
            same = (place for place in range(min(len(found), len(due))) if found[place] != due[place])
            index = next(same, min(len(found), len(due)))
        self.note(turn, type(due).__name__, index, repr(due)[:60], repr(found)[:60], source=source)

    def note(
        self, turn: int, kind: str, index: int, due: str, found: str, source: int | None = None, words: str = ""
    ) -> None:
        """Keep the first difference."""
        if self.failure is None:
            self.failure = {"rank": self.rank, "round": turn, "kind": kind, "index": index, "expected": due}
            self.failure.update(found=found, source=source, note=words)


class Test(NamedTuple):
    """A test: its name and its body, which returns what the PASS line shows."""

    name: str
    body: Callable[[Lab], str]
