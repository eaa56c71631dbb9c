"""Rules on how much each rank reads, how that ends, and what the next epoch does (pure)."""

from __future__ import annotations

from allranks.findings import Finding

from .case import Case, named, plural
from .rows import Shard, whole
from .sharing import padded

EVEN = "give every rank as many batches: DistributedSampler, drop_last=True, or torch's Join context manager"


def uneven(case: Case) -> Finding | None:
    """Ranks with more batches than others wait for those at the epoch's end, for ever."""
    lengths = {rank: shard.length for rank, shard in case.shards.items()}
    by_length: dict[int, list[int]] = {}
    for rank, length in lengths.items():
        if length is not None:
            by_length.setdefault(length, []).append(rank)
    if 0 in by_length and len(by_length) > 1:
        text = f"{named(by_length[0])} get{'s' if len(by_length[0]) == 1 else ''} no data at all: {_have(by_length)}"
        remedy = "split samples, not batches or files, over the ranks; or use fewer ranks"
        return case.finding("uneven-data", "fail", text, remedy, by_length[0][0])
    if len(by_length) > 1:
        drops = _drop_last(case)
        text = f"unequal numbers of batches: {_have(by_length)}; the run would hang at the end of the epoch"
        remedy = "set drop_last alike on all ranks" if drops else EVEN
        return case.finding("uneven-data", "fail", text + (f" ({drops})" if drops else ""), remedy)
    if _drop_last(case):
        text = f"{_drop_last(case)}: with other sizes of data the ranks get unequal numbers of batches"
        return case.finding("uneven-data", "warn", text, "set drop_last alike on all ranks")
    return None


def _have(by_length: dict[int, list[int]]) -> str:
    parts = []
    for length, ranks in sorted(by_length.items(), reverse=True):
        parts.append(f"{named(ranks)} {'has' if len(ranks) == 1 else 'have'} {length:,}")
    return ", ".join(parts[:4]) + (f", and {len(parts) - 4} more lengths" if len(parts) > 4 else "")


def _drop_last(case: Case) -> str:
    """`drop_last is set on rank 0 alone`, or nothing."""
    drop = [rank for rank, shard in case.shards.items() if shard.facts.get("drop_last")]
    keep = [rank for rank in case.shards if rank not in drop]
    return f"drop_last is set on {named(drop)} and not on {named(keep)}" if drop and keep else ""


def absent(case: Case, ranks: set[int]) -> Finding | None:
    """Ranks that ran and never iterated this loader."""
    missing = ranks - set(case.shards)
    if not missing or not case.shards:
        return None
    modules = {str(shard.facts.get("module", "")).split(".")[0] for shard in case.shards.values()}
    dispatch = any("Dispatcher" in str(shard.facts.get("class")) for shard in case.shards.values())
    if dispatch and "accelerate" in modules:
        return case.finding("data-dispatched", "ok", f"{named(case.shards)} reads for all ranks and hands out batches")
    text = f"{named(missing)} never iterated the loader that {named(case.shards)} did"
    return case.finding("data-absent", "unknown", text, "right if only those ranks are meant to read it")


def coverage(case: Case) -> Finding | None:
    """With a single rank's pass beside it: is every sample read by somebody?"""
    reference = case.audited.reference
    if reference is None or not reference.complete or not case.complete or case.identity.key == "none":
        return None
    if case.due is None:
        return _by_totals(case, reference)
    missing = len(set(case.due) - set(case.total))
    if not missing:
        return None
    dropped = any(shard.facts.get("drop_last") for shard in case.shards.values())
    figures = f"{missing:,} of {len(case.due):,} samples are read by nobody"
    if missing < case.world * (case.batch if dropped else 1):
        text = f"{figures}: the remainder at the end is dropped"
        return case.finding("data-dropped", "ok" if dropped or _sampler_drops(case) else "warn", text)
    if _about(len(case.due), len(case.total) * case.world):
        text = f"sharded twice: each rank reads its share of a share, and {figures}"
        remedy = "keep one of the two: the split dataset or the sampler"
        return case.finding("data-sharded-twice", "fail", text, remedy)
    text = f"{figures} ({100 * missing / len(case.due):.0f} %)"
    return case.finding("data-incomplete", "fail", text, "make the ranks' shares cover all of the data")


def _sampler_drops(case: Case) -> bool:
    """A DistributedSampler with drop_last has fewer samples than its share, rounded up."""
    each, data = whole(case.fact("sampler_len")), whole(case.fact("dataset_len"))
    return bool(case.fact("replicas") == case.world and each and data and each * case.world < data)


def _about(one: int, other: int) -> bool:
    return abs(one - other) <= 0.15 * max(one, other)


def _by_totals(case: Case, reference: Shard) -> Finding | None:
    """The contents cannot be compared (changed at random while they are read): how many there are can."""
    due, world = sum(reference.sizes), len(case.shards)
    got = sum(sum(shard.sizes) for shard in case.shards.values())
    unsure = "contents differ from pass to pass, so only numbers are compared"
    if got >= 1.5 * due and world > 1:
        text = f"the ranks read {got:,} samples where one rank alone reads {due:,}: the loader is not sharded"
        return case.finding("data-not-sharded", "fail", text, "shard by RANK of WORLD_SIZE", evidence=(unsure,))
    if _about(due, got * world) and world > 1:
        return case.finding("data-sharded-twice", "fail", f"sharded twice: {got:,} of {due:,} samples are read",
                            "keep one of the two splits", evidence=(unsure,))  # fmt: skip
    if got < due - world * case.batch:
        return case.finding("data-incomplete", "fail", f"{due - got:,} of {due:,} samples are read by nobody",
                            "make the ranks' shares cover all of the data", evidence=(unsure,))  # fmt: skip
    return case.finding("data-audit", "unknown", f"{unsure}: {got:,} read, {due:,} by one rank alone",
                        "make augmentation repeatable for the audit: seed it by the sample")  # fmt: skip


def filled(case: Case) -> Finding | None:
    """Padded duplicates at the end, counted."""
    number = padded(case)
    each, data = whole(case.fact("sampler_len")), whole(case.fact("dataset_len"))
    if not number and not case.complete and case.fact("replicas") == case.world and each is not None and data:
        number = each * case.world - data  # not read yet
    if not 0 < number <= case.world * case.batch:
        return None
    text = f"{plural(number, 'padded sample')} at the end of an epoch: read once more, to fill up the last batches"
    return case.finding("data-padding", "ok", text, "drop_last=True leaves the rest out instead")


def epochs(case: Case) -> Finding | None:
    """A shuffling sampler that gives every epoch the same order because nobody calls set_epoch."""
    stuck = []
    for rank, shard in case.shards.items():
        orders: dict[str, list[tuple[int, object]]] = {}
        for number, set_to, order in shard.orders:
            orders.setdefault(order, []).append((number, set_to))
        repeats = [found for found in orders.values() if len(found) > 1]
        if repeats and shard.facts.get("has_set_epoch") and shuffled(shard):
            known = {set_to for _, set_to in repeats[0]}
            if len(known) == 1:
                stuck.append(rank)
    if not stuck:
        return None
    text = f"set_epoch is never called: on {named(stuck)} every epoch has the order of the first"
    what = "dataset" if case.iterable else "loader.sampler"
    return case.finding("data-set-epoch", "warn", text, f"call {what}.set_epoch(epoch) before each epoch")


def shuffled(shard: Shard) -> bool:
    """As the sampler says; where it says nothing, indices that do not rise are a shuffle."""
    said = shard.facts.get("shuffle")
    if said is not None:
        return bool(said)
    numbers = [one for one in shard.index if isinstance(one, int)]
    return bool(numbers) and numbers != sorted(numbers)
