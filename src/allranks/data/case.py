"""One loader as all ranks saw it, with what several rules need to know of it (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from math import gcd
from typing import Any

from allranks.findings import Finding, Status, Where

from .identify import Identity, identify
from .rows import Audited, Shard, whole

CHECK = "data-audit"
Layout = Mapping[int, tuple[str, int]]
ALIKE = 0.9  # of the smaller of two ranks' samples: from here on they read the same


def numbers(ranks: Iterable[int]) -> str:
    """`0–7, 9`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def named(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0–7`."""
    found = list(ranks)
    return f"rank{'' if len(found) == 1 else 's'} {numbers(found)}"


def listed(parts: list[str]) -> str:
    """`a, b and c`; of many the first three."""
    if len(parts) > 4:
        parts = [*parts[:3], f"{len(parts) - 3} more such groups"]
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Case:
    """One loader: the ranks that should read different samples, and where they are."""

    audited: Audited
    world: int
    layout: Layout
    sole: bool  # the only loader of the run: its name says nothing

    @cached_property
    def shards(self) -> dict[int, Shard]:
        return dict(sorted(self.audited.shards.items()))

    @cached_property
    def identity(self) -> Identity:
        reference = [self.audited.reference] if self.audited.reference else []
        filled = [s for s in self.shards.values() if s.content or s.index]
        return identify([*filled, *reference])

    @cached_property
    def keys(self) -> dict[int, list[Any]]:
        """What tells each rank's samples apart; ranks without samples have an empty list."""
        return {rank: self._keys_of(shard) for rank, shard in self.shards.items()}

    def _keys_of(self, shard: Shard) -> list[Any]:
        return shard.index if self.identity.key == "index" else list(shard.content)

    @cached_property
    def counts(self) -> dict[int, Counter[Any]]:
        return {rank: Counter(keys) for rank, keys in self.keys.items()}

    @cached_property
    def total(self) -> Counter[Any]:
        """How often each sample was read by all ranks together."""
        found: Counter[Any] = Counter()
        for count in self.counts.values():
            found.update(count)
        return found

    @cached_property
    def due(self) -> Counter[Any] | None:
        """How often each sample is in the data, by a single rank's pass; None without one, or if nothing fits."""
        reference = self.audited.reference
        if reference is None or not reference.complete:
            return None
        count = Counter(self._keys_of(reference))
        common = reduce(gcd, count.values(), 0) or 1  # a pass in which every worker reads everything
        found = Counter({key: number // common for key, number in count.items()})
        return found if not self.total or any(key in found for key in self.total) else None

    @cached_property
    def reads(self) -> int:
        return self.total.total()

    @cached_property
    def repeated(self) -> int:
        """Reads beyond the first of a sample; where the data itself repeats samples, beyond those."""
        due = self.due or Counter()
        return sum(max(0, number - max(1, due[key])) for key, number in self.total.items())

    @cached_property
    def shared(self) -> dict[Any, list[int]]:
        """Samples that several ranks read, more often than the data has them, and by whom."""
        readers: dict[Any, list[int]] = {}
        for rank, count in self.counts.items():
            for key in count:
                readers.setdefault(key, []).append(rank)
        due = self.due or Counter()
        return {key: ranks for key, ranks in readers.items() if len(ranks) > max(1, due[key])}

    @property
    def within(self) -> int:
        """Reads of a sample that the same rank had read already."""
        return sum(count.total() - len(count) for count in self.counts.values())

    @cached_property
    def complete(self) -> bool:
        return all(shard.complete for shard in self.shards.values())

    def fact(self, name: str) -> Any:
        """What all ranks' loaders say of themselves; None where they differ."""
        found = [shard.facts.get(name) for shard in self.shards.values()]
        return found[0] if all(one == found[0] for one in found) else None

    @property
    def batch(self) -> int:
        return max([whole(s.facts.get("batch")) or 1 for s in self.shards.values()] + [1])

    @property
    def iterable(self) -> bool:
        return any(s.facts.get("style") == "iterable" for s in self.shards.values())

    @cached_property
    def evaluation(self) -> bool:
        """Read without gradients throughout: often every rank is meant to read all of it."""
        return all(not s.training for s in self.shards.values() if s.noted) and bool(self.reads)

    @property
    def span(self) -> str:
        """`the first 10 batches`, or `the epoch`."""
        if self.complete:
            return "the epoch"
        number = max((shard.noted for shard in self.shards.values()), default=0)
        return f"the first {number:,} batches" if number != 1 else "the first batch"

    def finding(self, id: str, status: Status, message: str, remedy: str = "", rank: int | None = None,
                evidence: tuple[str, ...] = ()) -> Finding:  # fmt: skip
        """A finding about this loader; faults of an evaluation loader are warnings."""
        if self.evaluation and status == "fail":
            status, message = "warn", f"{message} (read without gradients: harmless if it evaluates)"
        text = message if self.sole else f"loader of {self.audited.name}: {message}"
        return Finding(id, status, text, remedy, Where(rank=rank), evidence or (self.identity.why,), CHECK)

    def place(self, rank: int) -> tuple[str, int]:
        """Node and local rank; without a layout all are on one node."""
        return self.layout.get(rank, ("", rank))
