"""Rules on which ranks read the same samples (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from allranks.findings import Finding
from allranks.text import format_percent, format_ranges, format_ranks, join_words

from .case import LoaderCase, samples
from .rows import Sample

SHARD = (
    "use DistributedSampler(dataset), under accelerate loader = accelerator.prepare(loader), or shard the stream by "
    "the global rank (RANK of WORLD_SIZE)"
)
BY_RANK = (
    "shard by the global rank: num_replicas=dist.get_world_size(), rank=dist.get_rank() (RANK, not LOCAL_RANK). "
    "It is right as it is only if these ranks are one model-parallel group."
)
KEEP_ONE = "keep one of the two: the split dataset or the sampler"
AUDIT_LOADER = "allranks data audit --loader module:function"
ALIKE = 0.9  # of the smaller of two ranks' samples: from here on they read the same
MANY = 0.02  # of all reads: from here on contents that two ranks share are not a coincidence of the data
GROUPS = 64  # with which a rank's samples are compared
GROUPS_NAMED = 4


def sharing(case: LoaderCase) -> Finding | None:
    """Say in one sentence how the ranks' samples overlap; None where they do not."""
    if len(case.shards) < 2 or case.identity.key == "none":
        return None
    if case.shared and not padded(case):
        return _same(case) or _overlap(case)
    return _twice(case) or _unshrunk(case)


# -- padding -------------------------------------------------------------------------------------------


def padded(case: LoaderCase) -> int:
    """Count reads that only fill up the last batches; 0 where there are none, or repetition has another reason."""
    if 0 < case.repeated <= _allowance(case) or (case.complete and _repeats_in_last_batches(case)):
        return case.repeated
    return 0


def _allowance(case: LoaderCase) -> int:
    surplus = case.surplus
    if surplus is None or case.identity.same is False:
        return 0
    return surplus if 0 <= surplus < case.world * case.batch else 0


def _repeats_in_last_batches(case: LoaderCase) -> bool:
    if case.repeated >= case.world * case.batch or any(shard.noted == 1 for shard in case.shards.values()):
        return False
    last: Counter[Sample] = Counter()
    for shard in case.shards.values():
        if shard.sizes and shard.sizes[-1]:
            last.update(case.keys(shard)[-shard.sizes[-1] :])
    return all(last[key] >= number - case.owed(key) for key, number in case.total.items() if number > 1)


# -- the same samples ----------------------------------------------------------------------------------


def _same(case: LoaderCase) -> Finding | None:
    groups = _alike(case)
    repeating = [group for group in groups if len(group) > 1]
    if not repeating:
        return None
    drawn = ", drawn with replacement from the same seed" if case.facts.replacement else ""
    if len(groups) == 1:
        if not drawn and len({tuple(case.keys(shard)) for shard in case.shards.values()}) > 1:
            drawn = ", each shuffled differently"
        text = f"all {len(groups[0])} ranks read the same samples{drawn}: the loader is not sharded"
        return case.finding("data-not-sharded", "fail", text, SHARD)
    who = _each(repeating, " among themselves")
    why = ""
    if len(repeating) == len(groups):
        by_node: dict[str, list[int]] = {}
        for rank in (rank for group in groups for rank in group):
            by_node.setdefault(case.place(rank)[0], []).append(rank)
        if all(len({case.place(rank)[1] for rank in group}) == 1 for group in groups):
            who = _each(by_node.values())
            why = ": the loader shards by local rank"
        elif all(len({case.place(rank)[0] for rank in group}) == 1 for group in groups):
            why = ": the loader splits by node only"
    return case.finding("data-same-samples", "fail", f"{who} read the same samples{drawn}{why}", BY_RANK)


def _alike(case: LoaderCase) -> list[list[int]]:
    """Group ranks with (nearly) the same samples; ranks without samples are left out."""
    exact: dict[frozenset[Sample], list[int]] = {}
    for rank, count in case.counts.items():
        if count:
            exact.setdefault(frozenset(count), []).append(rank)
    groups: dict[frozenset[Sample], list[int]] = {}
    for keys, ranks in exact.items():
        alike = keys
        for other in list(groups)[:GROUPS]:
            if len(keys & other) >= ALIKE * min(len(keys), len(other)):
                alike = other
                break
        groups.setdefault(alike, []).extend(ranks)
    return [sorted(ranks) for ranks in groups.values()]


def _each(groups: Iterable[list[int]], more: str = "") -> str:
    """Write `ranks 0-7 and 8-15`; of one group the whole, without `more`."""
    first, *others = groups
    if not others:
        return format_ranks(first)
    return join_words([format_ranks(first), *map(format_ranges, others)], limit=GROUPS_NAMED) + more


def _overlap(case: LoaderCase) -> Finding | None:
    facts = case.facts
    number = len(case.shared)
    expected = 0.0
    if case.identity.key == "index":
        expected = _allowance(case)
    elif case.due is None:
        expected = max(MANY, 3 * case.within / case.reads) * len(case.total)
    if number <= expected:
        return None
    if facts.replacement or (case.identity.key == "index" and case.within):
        why = "each rank draws with replacement from all of the data, and they overlap by chance"
    elif facts.sampler_len is not None and facts.sampler_len == facts.dataset_len and case.identity.same is not False:
        why = (
            f"each rank goes through all {facts.dataset_len:,} samples, shuffled differently: the loader is not sharded"
        )
    elif case.complete and case.repeated >= 0.8 * (len(case.shards) - 1) * len(case.total):
        why = "each rank reads all of the data, in an order of its own: the loader is not sharded"
    else:
        why = "they overlap by chance: the ranks do not agree on one order, or draw on their own"
    first = {rank for ranks in list(case.shared.values())[:GROUPS] for rank in ranks}
    share = f"{format_percent(number / len(case.total))} of {samples(len(case.total))} in {case.span}"
    text = f"{format_ranks(first)} read samples that others read too ({share}): {why}"
    return case.finding("data-overlap", "fail", text, SHARD + ", with one seed on all ranks")


# -- by the loaders' own figures -----------------------------------------------------------------------


def _twice(case: LoaderCase) -> Finding | None:
    """Find datasets that are already a rank's share, and a sampler that shares them out again."""
    facts = case.facts
    identities = {shard.facts.identity for shard in case.shards.values()}
    if case.due is not None or case.identity.same is not False or (facts.replicas or 1) == 1:
        return None
    if identities & {None, ""} or len(identities) < len(case.shards):
        return None
    if facts.sampler_len is None or facts.dataset_len is None:
        return None
    text = (
        f"sharded twice: each rank has a dataset of its own with {samples(facts.dataset_len)}, and its sampler takes "
        f"{facts.sampler_len:,} of them, one in {facts.replicas}. No rank reads the rest"
    )
    return case.finding("data-sharded-twice", "fail", text, KEEP_ONE)


def _unshrunk(case: LoaderCase) -> Finding | None:
    facts = case.facts
    data = facts.dataset_len
    if case.complete or case.iterable or data is None or facts.sampler_len != data:
        return None
    if case.identity.same is False or facts.replicas == case.world:
        return None
    if facts.replacement:
        text = f"each of {case.world} ranks draws {data:,} samples of all {data:,}: they overlap by chance"
        return case.finding("data-overlap", "warn", text, SHARD)
    if case.identity.same is None:
        text = f"each rank reads all {data:,} samples of its dataset, and it is not known whether these are one dataset"
        return case.finding("data-not-sharded", "unknown", text, AUDIT_LOADER)
    text = (
        f"the loader's length does not shrink with the world size: each of {case.world} ranks would read all "
        f"{data:,} samples"
    )
    return case.finding("data-not-sharded", "fail", text, SHARD)
