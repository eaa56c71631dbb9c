"""By what two ranks' samples are to be compared: by index, by content, or not at all (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .rows import Shard

Key = Literal["index", "content", "none"]
FEW = 3  # distinct labels or contents below which equality says nothing


@dataclass(frozen=True)
class Identity:
    """`key` is what tells one sample from another; `same` whether all ranks hold the same dataset, None: unknown."""

    key: Key
    same: bool | None
    why: str


def identify(shards: Sequence[Shard]) -> Identity:
    """Looks at what the ranks' samples have in common under the same index.

    The same index with the same content: one dataset. With other content but the same labels: one dataset, changed
    at random as it is read. With other content and other labels: each rank has a dataset of its own."""
    if not all(shard.indexed for shard in shards):
        return _by_content(shards)
    same = _same_at_index(shards)
    if same is None:
        same = _same_by_holdings(shards)
    if same is False:
        return Identity("content", False, "each rank has a dataset of its own: compared by content")
    if same is None:
        return Identity("index", None, "compared by index")
    return Identity("index", True, "compared by the sampler's index")


def _by_content(shards: Sequence[Shard]) -> Identity:
    distinct = {one for shard in shards for one in shard.content}
    reads = sum(len(shard.content) for shard in shards)
    if len(distinct) < FEW and reads > 8:
        return Identity("none", None, f"{reads} samples have only {len(distinct)} different contents")
    return Identity("content", None, "compared by content")


def _same_at_index(shards: Sequence[Shard]) -> bool | None:
    """Compares contents that two ranks read under the same index; None where no index was read twice."""
    first: dict[Any, tuple[int, str, str | None]] = {}
    equal = parts = pairs = 0
    labels = set()
    for shard in shards:
        if not shard.paired:
            continue
        for index, content, part in zip(shard.index, shard.content, shard.part, strict=False):
            rank, other, label = first.setdefault(index, (shard.rank, content, part))
            if rank != shard.rank:
                pairs += 1
                equal += other == content
                parts += part is not None and part == label
                labels.add(part)
    if not pairs:
        return None
    if 2 * equal >= pairs:
        return True
    if len(labels - {None}) < FEW - 1:
        return None if labels != {None} else _without_labels(shards)
    return 10 * parts >= 9 * pairs


def _without_labels(shards: Sequence[Shard]) -> bool | None:
    """Fractions alone, and all differ: own datasets or augmentation; what the datasets hold decides."""
    found = _same_by_holdings(shards)
    lengths = {shard.facts.get("dataset_len") for shard in shards}
    return False if found is None and len(lengths) > 1 else found


def _same_by_holdings(shards: Sequence[Shard]) -> bool | None:
    """Compares the lists, arrays and index sets that the datasets hold; None where some hold none."""
    lengths = {shard.facts.get("dataset_len") for shard in shards}
    if len(lengths) > 1:
        return False
    found = {shard.facts.get("identity") for shard in shards}
    return None if found & {None, ""} else len(found) == 1
