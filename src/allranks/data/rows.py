"""What the ranks noted of their loaders, row by row, put together by loader and rank (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from allranks.protocol.codec import DecodeError, Vocabulary
from allranks.protocol.jsontext import read_object

REFERENCE = -1  # the rank under which the pass of a single rank is kept
LONGEST_ROW = 64 << 20  # bytes; the probe notes 4096 samples of a batch at most
NAME_LENGTH = 80  # characters of a dataset's class in messages

Sample = int | str | None  # an index or a content's hash; None where the sampler gave no index
Setting = bool | int | float | str | None  # what set_epoch had set


@dataclass(frozen=True)
class RankRow:
    """A rank that carries the probe."""

    rank: int | None = None


@dataclass(frozen=True)
class LoaderRow:
    """A loader of a rank, as it describes itself; None where it does not say."""

    rank: int | None = None
    loader: int = 0
    class_: str = ""
    module: str = ""
    dataset: str = "?"
    style: str = ""  # "map" or "iterable"
    loader_len: int | None = None
    dataset_len: int | None = None
    identity: str | None = None
    batch: int | None = None
    drop_last: bool | None = None
    workers: int | None = None
    sampler: str = ""
    sampler_len: int | None = None
    replicas: int | None = None
    shuffle: bool | None = None
    replacement: bool | None = None
    has_set_epoch: bool | None = None

    @property
    def name(self) -> str:
        """Give the class of the dataset, fit to be printed."""
        return "".join(letter for letter in self.dataset if letter.isprintable())[:NAME_LENGTH]


@dataclass(frozen=True)
class BatchRow:
    """A batch of the first epoch: `hash` of each sample, and of its `part` that augmentation leaves alone.

    A `part` of "hash" is the whole sample."""

    rank: int | None = None
    loader: int = 0
    n: int = 0
    grad: bool = True
    index: tuple[Sample, ...] | None = None
    hash: tuple[str, ...] = ()
    part: str | tuple[str, ...] | None = None

    @property
    def parts(self) -> tuple[str | None, ...]:
        """Give the hash of each sample's part; None where the samples have none."""
        if self.part == "hash":
            return self.hash
        if isinstance(self.part, tuple):
            return self.part
        return (None,) * len(self.hash)


@dataclass(frozen=True)
class EpochRow:
    """The begin of an epoch: what set_epoch had set, and a hash of the first batch's order."""

    rank: int | None = None
    loader: int = 0
    epoch: int = 0
    set_to: Setting = None
    order: str = ""


@dataclass(frozen=True)
class EndRow:
    """The end of an epoch, after so many batches."""

    rank: int | None = None
    loader: int = 0
    epoch: int = 0
    batches: int | None = None


Row = RankRow | LoaderRow | BatchRow | EpochRow | EndRow
ROWS: Vocabulary[Row] = Vocabulary(
    "kind",
    {
        "data-rank": RankRow,
        "data-loader": LoaderRow,
        "data-batch": BatchRow,
        "data-epoch": EpochRow,
        "data-end": EndRow,
    },
)


def read_row(line: bytes, rank: int | None = None) -> Row | None:
    """Read a row, as one of `rank` where that is given; None for any other line."""
    try:
        row = ROWS.read(read_object(line, LONGEST_ROW))
    except DecodeError:
        return None
    return row if rank is None else replace(row, rank=rank)


@dataclass
class Shard:
    """What one rank read through one loader: its first epoch, and how the later ones began.

    `batches` is the length of the first epoch, None where it did not end; `sizes` are those of the hashed batches.
    """

    rank: int
    loader: LoaderRow | None = None
    index: list[Sample] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    part: list[str | None] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    batches: int | None = None
    training: bool = True
    orders: list[EpochRow] = field(default_factory=list)

    @property
    def facts(self) -> LoaderRow:
        """Give what the loader says of itself."""
        return self.loader or LoaderRow()

    @property
    def noted(self) -> int:
        """Count the batches that were hashed."""
        return len(self.sizes)

    @property
    def complete(self) -> bool:
        """Tell whether the first epoch was hashed to its end."""
        return self.batches == self.noted

    @property
    def length(self) -> int | None:
        """Count the batches of an epoch: those seen where it ended, else as a map-style loader says."""
        if self.batches is None and self.facts.style == "map":
            return self.facts.loader_len
        return self.batches

    @property
    def indexed(self) -> bool:
        """Tell whether the sampler gave an index for each sample."""
        return bool(self.index) and None not in self.index

    def add(self, row: LoaderRow | BatchRow | EpochRow | EndRow) -> None:
        """Take in one of the rank's rows."""
        if isinstance(row, LoaderRow):
            self.loader = row
        elif isinstance(row, EpochRow):
            self.orders.append(row)
        elif isinstance(row, EndRow):
            if row.epoch == 0:
                self.batches = row.batches
        else:
            self.content += row.hash
            self.index += row.index or (None,) * len(row.hash)
            self.part += row.parts
            self.sizes.append(row.n)
            self.training = self.training and row.grad


def gather(rows: Iterable[Row]) -> tuple[set[int], dict[str, dict[int, Shard]]]:
    """Give (the ranks that carried the probe, what each read through each loader, by its name for messages).

    Loaders of two ranks are the same one where they are the n-th with that class of dataset: a rank that has one
    loader more than the others, say for evaluation, puts nothing out of step. A loader that describes itself as an
    earlier one does is that one, made again for the next epoch."""
    ranks: set[int] = set()
    shards: dict[tuple[int, int], Shard] = {}
    for row in rows:
        rank = row.rank or 0
        ranks.add(rank)
        if not isinstance(row, RankRow):
            shards.setdefault((rank, row.loader), Shard(rank)).add(row)
    loaders: dict[str, dict[int, Shard]] = {}
    loaders_of: Counter[tuple[int, str]] = Counter()
    first_alike: dict[tuple[int, LoaderRow], Shard] = {}
    for (rank, _), shard in sorted(shards.items()):
        earlier = first_alike.setdefault((rank, replace(shard.facts, loader=0)), shard)
        if earlier is not shard and shard.loader is not None:
            later = 1 + max((order.epoch for order in earlier.orders), default=0)
            earlier.orders += [replace(order, epoch=order.epoch + later) for order in shard.orders]
            continue
        dataset = shard.facts.name
        loaders_of[rank, dataset] += 1
        nth = loaders_of[rank, dataset]
        name = f"{dataset} ({nth})" if nth > 1 else dataset
        loaders.setdefault(name, {})[rank] = shard
    read_by_ranks = {name: read for name, read in loaders.items() if read.keys() - {REFERENCE}}
    return ranks - {REFERENCE}, read_by_ranks
