"""By what two ranks' samples are to be compared: by index, by content, or not at all (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .rows import Sample, Shard

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
        return _by_content(shards)
    same = _same_at_index(shards)
    if same is None:
        same = _same_by_holdings(shards)
    if same is False:
        return SampleIdentity("content", False, "each rank has a dataset of its own: compared by content")
    if same:
        return SampleIdentity("index", True, "compared by the sampler's index")
    return SampleIdentity("index", None, "compared by index")


def _by_content(shards: Sequence[Shard]) -> SampleIdentity:
    contents = [content for shard in shards for content in shard.content]
    distinct = len(set(contents))
    if distinct < FEW and len(contents) > MANY:
        return SampleIdentity("none", None, f"{len(contents)} samples have only {distinct} different contents")
    return SampleIdentity("content", None, "compared by content")


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
