"""What the ranks noted of their loaders, row by row, put together by loader and rank (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]
REFERENCE = -1  # the rank under which the pass of a single rank is kept
KINDS = ("data-rank", "data-loader", "data-batch", "data-epoch", "data-end")


@dataclass
class Shard:
    """What one rank read through one loader: its first epoch, and how the later ones began.

    `index` has None in it where the sampler gave no index; `batches` is the length of the first epoch, None where
    it did not end; `noted` is how many batches were hashed; `orders` has (epoch, what set_epoch set, order's hash).
    """

    rank: int
    facts: dict[str, Any] = field(default_factory=dict)
    index: list[Any] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    part: list[str | None] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    batches: int | None = None
    one_piece: bool = False
    training: bool = True
    orders: list[tuple[int, Any, str]] = field(default_factory=list)

    @property
    def noted(self) -> int:
        return len(self.sizes)

    @property
    def complete(self) -> bool:
        """The whole first epoch was hashed."""
        return self.batches is not None and self.batches == self.noted

    @property
    def length(self) -> int | None:
        """Batches an epoch: counted where the epoch ended, else as the loader says, but for iterable datasets."""
        if self.batches is not None:
            return self.batches
        return whole(self.facts.get("loader_len")) if self.facts.get("style") == "map" else None

    @property
    def indexed(self) -> bool:
        return bool(self.index) and all(one is not None for one in self.index)

    @property
    def paired(self) -> bool:
        """Each index has its content's hash beside it."""
        return self.indexed and len(self.index) == len(self.content)

    def add(self, row: Row) -> None:
        """Takes in one of the rank's rows."""
        kind = row.get("kind")
        if kind == "data-loader":
            self.facts = dict(row)
        elif kind == "data-batch":
            hashes = texts(row.get("hash"))
            index = row.get("index")
            self.content += hashes
            known = [one if isinstance(one, (int, str)) else None for one in index] if isinstance(index, list) else None
            self.index += [None] * len(hashes) if known is None else known
            part = row.get("hash") if row.get("part") == "hash" else row.get("part")
            self.part += texts(part) if isinstance(part, list) else [None] * len(hashes)
            self.sizes.append(whole(row.get("n")) or 0)
            self.one_piece = self.one_piece or bool(row.get("one_piece"))
            self.training = self.training and bool(row.get("grad", True))
        elif kind == "data-epoch":
            self.orders.append((whole(row.get("epoch")) or 0, row.get("set_to"), str(row.get("order"))))
        elif kind == "data-end" and row.get("epoch") == 0:
            self.batches = whole(row.get("batches"))


@dataclass
class Audited:
    """All ranks' views of one loader; `name` is for messages."""

    name: str
    shards: dict[int, Shard]
    reference: Shard | None = None


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def dataset_name(row: Row) -> str:
    """The class of a loader's dataset, fit to be printed."""
    return "".join(c for c in str(row.get("dataset", "?")) if c.isprintable())[:80]


def gather(rows: Iterable[Row]) -> tuple[dict[int, Row], list[Audited]]:
    """(the ranks that carried the probe, the loaders).

    Loaders of two ranks are the same one where they are the n-th with that class of dataset: a rank that has one
    loader more than the others, say for evaluation, puts nothing out of step. A loader like an earlier one in all
    that is known of it is that one, made anew for the next epoch."""
    ranks: dict[int, Row] = {}
    shards: dict[tuple[int, int], Shard] = {}
    for row in rows:
        rank = whole(row.get("rank"))
        rank = 0 if rank is None else rank
        if row.get("kind") == "data-rank":
            ranks[rank] = row
        elif row.get("kind") in KINDS:
            key = (rank, whole(row.get("loader")) or 0)
            shards.setdefault(key, Shard(rank)).add(row)
    found: dict[tuple[str, int], Audited] = {}
    count: dict[tuple[int, str], int] = {}
    known: dict[tuple[int, str], Shard] = {}
    for (rank, _), shard in sorted(shards.items()):
        facts = repr(sorted((name, value) for name, value in shard.facts.items() if name != "loader"))
        earlier = known.setdefault((rank, facts), shard)
        if earlier is not shard and shard.facts:
            later = 1 + max([number for number, _, _ in earlier.orders], default=0)
            earlier.orders += [(number + later, set_to, order) for number, set_to, order in shard.orders]
            continue
        dataset = dataset_name(shard.facts)
        nth = count[rank, dataset] = count.get((rank, dataset), 0) + 1
        one = found.setdefault((dataset, nth), Audited(dataset if nth == 1 else f"{dataset} ({nth})", {}))
        if rank == REFERENCE:
            one.reference = shard
        else:
            one.shards[rank] = shard
        ranks.setdefault(rank, {})
    ranks.pop(REFERENCE, None)
    return ranks, [one for one in found.values() if one.shards]
