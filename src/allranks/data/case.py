"""One loader as all ranks saw it, with what several rules need to know of it (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import gcd
from typing import Literal

from allranks.findings import Finding, Status, Where
from allranks.text import plural

from .rows import LoaderRow, Sample, Shard

CHECK = "data-audit"
Layout = Mapping[int, tuple[str, int]]


@dataclass(frozen=True)
class Coverage:
    """What a rank read through a loader, and how many of its samples others read too (`shared`).

    Without a rank it is what all of them read, with `repeated`, `data` and `missing`. The last two are None where it
    is unknown what the data has.
    """

    loader: str
    samples: int
    distinct: int
    shared: int
    rank: int | None = None
    node: str | None = None
    local_rank: int | None = None
    batches: int | None = None
    repeated: int | None = None
    data: int | None = None
    missing: int | None = None


def samples(count: int) -> str:
    """Write `1 sample`, `32,217 samples`."""
    return f"{count:,} {plural(count, 'sample')}"


@dataclass(frozen=True)
class LoaderCase:
    """One loader: the ranks that should read different samples, and where they are."""

    name: str
    shards: dict[int, Shard]  # what each rank read, by rank
    reference: Shard | None  # what a single rank reads
    layout: Layout
    sole: bool  # the only loader of the run: its name says nothing

    @property
    def world(self) -> int:
        """Count the ranks of the run."""
        return len(self.layout)

    @cached_property
    def facts(self) -> LoaderRow:
        """Give what all ranks' loaders say of themselves; None where they differ."""
        first, *others = [shard.facts for shard in self.shards.values()]
        agreed = {
            name: value for name, value in vars(first).items() if all(getattr(facts, name) == value for facts in others)
        }
        return LoaderRow(**agreed)

    @cached_property
    def identity(self) -> SampleIdentity:
        """Say by what samples are compared."""
        filled = [shard for shard in self.shards.values() if shard.content or shard.index]
        if self.reference:
            filled.append(self.reference)
        return identify(filled)

    @cached_property
    def counts(self) -> dict[int, Counter[Sample]]:
        """Count how often each rank read each sample."""
        return {rank: Counter(self.keys(shard)) for rank, shard in self.shards.items()}

    def keys(self, shard: Shard) -> list[Sample]:
        """List what tells a rank's samples apart."""
        return shard.index if self.identity.key == "index" else [*shard.content]

    @cached_property
    def total(self) -> Counter[Sample]:
        """Count how often each sample was read by all ranks."""
        total: Counter[Sample] = Counter()
        for count in self.counts.values():
            total.update(count)
        return total

    @cached_property
    def due(self) -> Counter[Sample] | None:
        """Count how often each sample is in the data, by a single rank's pass; None without one, or if nothing fits."""
        reference = self.reference
        if reference is None or not reference.complete:
            return None
        count = Counter(self.keys(reference))
        common = reduce(gcd, count.values(), 0) or 1  # a pass in which every worker reads everything
        if self.total and not any(key in count for key in self.total):
            return None
        return Counter({key: number // common for key, number in count.items()})

    @property
    def missing(self) -> int | None:
        """Count the samples that no rank read; None where it is unknown what the data has."""
        return None if self.due is None else len(self.due.keys() - self.total.keys())

    @cached_property
    def reads(self) -> int:
        """Count the samples that were read."""
        return self.total.total()

    def owed(self, key: Sample) -> int:
        """Say how often a sample is to be read: once, or as often as the data repeats it."""
        return 1 if self.due is None else max(1, self.due[key])

    @cached_property
    def repeated(self) -> int:
        """Count the reads beyond those that are due."""
        return sum(max(0, number - self.owed(key)) for key, number in self.total.items())

    @cached_property
    def shared(self) -> dict[Sample, list[int]]:
        """Give the samples that more ranks read than the data has them, and which ranks."""
        readers: dict[Sample, list[int]] = {}
        for rank, count in self.counts.items():
            for key in count:
                readers.setdefault(key, []).append(rank)
        return {key: ranks for key, ranks in readers.items() if len(ranks) > self.owed(key)}

    @property
    def within(self) -> int:
        """Count the reads of a sample that the same rank had read already."""
        return self.reads - sum(map(len, self.counts.values()))

    @cached_property
    def complete(self) -> bool:
        """Tell whether all ranks' first epochs were hashed to their ends."""
        return all(shard.complete for shard in self.shards.values())

    @cached_property
    def batch(self) -> int:
        """Give the largest batch of a rank."""
        return max(shard.facts.batch or 1 for shard in self.shards.values())

    @property
    def iterable(self) -> bool:
        """Tell whether a dataset is a stream."""
        return any(shard.facts.style == "iterable" for shard in self.shards.values())

    @property
    def surplus(self) -> int | None:
        """Count the reads an epoch beyond the data's samples, by the samplers' own figures.

        Negative where they drop the rest; None where they do not share one dataset out."""
        facts = self.facts
        if facts.replicas != self.world or facts.sampler_len is None or facts.dataset_len is None:
            return None
        return facts.sampler_len * self.world - facts.dataset_len

    @cached_property
    def evaluation(self) -> bool:
        """Tell whether it was read without gradients throughout: often every rank is meant to read all of it."""
        return self.reads > 0 and not any(shard.training for shard in self.shards.values() if shard.noted)

    @property
    def span(self) -> str:
        """Write `the first 10 batches`, or `the epoch`."""
        if self.complete:
            return "the epoch"
        noted = max(shard.noted for shard in self.shards.values())
        return "the first batch" if noted == 1 else f"the first {noted:,} batches"

    def finding(
        self,
        id: str,
        status: Status,
        message: str,
        remedy: str = "",
        rank: int | None = None,
        evidence: tuple[str, ...] = (),
    ) -> Finding:
        """Make a finding about this loader; faults of an evaluation loader are warnings."""
        if self.evaluation and status == "fail":
            status = "warn"
            message = f"{message} (read without gradients: harmless if it evaluates)"
        if not self.sole:
            message = f"loader of {self.name}: {message}"
        return Finding(
            id, status, message, remedy, where=Where(rank=rank), evidence=evidence or (self.identity.why,), check=CHECK
        )

    def place(self, rank: int) -> tuple[str, int]:
        """Give node and local rank; without a layout all are on one node."""
        return self.layout.get(rank, ("", rank))

    def coverage(self) -> list[Coverage]:
        """Make a row a rank, and one of all ranks."""
        rows = []
        for rank, count in self.counts.items():
            node, local_rank = self.place(rank)
            rows.append(
                Coverage(
                    self.name,
                    samples=count.total(),
                    distinct=len(count),
                    shared=sum(key in self.shared for key in count),
                    rank=rank,
                    node=node,
                    local_rank=local_rank,
                    batches=self.shards[rank].length,
                )
            )
        of_all = Coverage(
            self.name,
            samples=self.reads,
            distinct=len(self.total),
            shared=len(self.shared),
            repeated=self.repeated,
            data=len(self.due) if self.due is not None else None,
            missing=self.missing,
        )
        return [*rows, of_all]


FEW = 3  # distinct labels or contents below which equality says nothing
MANY = 8  # reads from which on FEW contents are not an accident


@dataclass(frozen=True)
class SampleIdentity:
    """`key` is what tells one sample from another; `same` whether all ranks hold the same dataset, None: unknown."""

    key: Literal["index", "content", "none"]
    same: bool | None
    why: str


def identify(shards: Sequence[Shard]) -> SampleIdentity:
    """Compare what the ranks' samples have in common under the same index.

    The same index with the same content: one dataset. With other content but the same labels: one dataset, changed
    at random as it is read. With other content and other labels: each rank has a dataset of its own."""
    if not all(shard.indexed for shard in shards):
        contents = [content for shard in shards for content in shard.content]
        distinct = len(set(contents))
        if distinct < FEW and len(contents) > MANY:
            return SampleIdentity("none", None, f"{len(contents)} samples have only {distinct} different contents")
        return SampleIdentity("content", None, "compared by content")
    same = _same_at_index(shards)
    if same is None:
        same = _same_by_holdings(shards)
    if same is False:
        return SampleIdentity("content", False, "each rank has a dataset of its own: compared by content")
    if same:
        return SampleIdentity("index", True, "compared by the sampler's index")
    return SampleIdentity("index", None, "compared by index")


def _same_at_index(shards: Sequence[Shard]) -> bool | None:
    """Compare contents that two ranks read under the same index; None where no index was read twice."""
    first: dict[Sample, tuple[int, str, str | None]] = {}
    labels: set[str | None] = set()
    pairs = 0
    equal_contents = 0
    equal_labels = 0
    for shard in shards:
        if len(shard.index) != len(shard.content):
            continue
        for index, content, label in zip(shard.index, shard.content, shard.part, strict=False):
            rank, first_content, first_label = first.setdefault(index, (shard.rank, content, label))
            if rank != shard.rank:
                pairs += 1
                equal_contents += first_content == content
                equal_labels += label is not None and label == first_label
                labels.add(label)
    if not pairs:
        return None
    if 2 * equal_contents >= pairs:
        return True
    if len(labels - {None}) < FEW - 1:
        return None
    return 10 * equal_labels >= 9 * pairs


def _same_by_holdings(shards: Sequence[Shard]) -> bool | None:
    """Compare the lists, arrays and index sets that the datasets hold; None where some hold none."""
    if len({shard.facts.dataset_len for shard in shards}) > 1:
        return False
    identities = {shard.facts.identity for shard in shards}
    if identities & {None, ""}:
        return None
    return len(identities) == 1
