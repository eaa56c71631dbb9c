"""Rows of all ranks → findings: disjoint and complete, or what is wrong with the split of the data (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from allranks.findings import Finding
from allranks.text import format_percent, format_ranks, plural

from .case import CHECK, Layout, LoaderCase, samples
from .rows import REFERENCE, Row, Setting, Shard, gather
from .sharing import AUDIT_LOADER, KEEP_ONE, padded, sharing

# -- How much each rank reads, how that ends, and what the next epoch does ---------------------------------------------

EVEN = "give every rank as many batches: DistributedSampler, drop_last=True, or torch's Join context manager"
SAME_DROP_LAST = "set drop_last alike on all ranks"
COVER = "make the ranks' shares cover all of the data"
LENGTHS_NAMED = 4
ABOUT = 0.15  # by how much two counts may differ and still be about the same


def uneven(case: LoaderCase) -> Finding | None:
    """Find ranks with more batches than others: they wait for those at the epoch's end, for ever."""
    by_length: dict[int, list[int]] = {}
    for rank, shard in case.shards.items():
        if shard.length is not None:
            by_length.setdefault(shard.length, []).append(rank)
    dropping = [rank for rank, shard in case.shards.items() if shard.facts.drop_last]
    keeping = [rank for rank in case.shards if rank not in dropping]
    drops = ""
    if dropping and keeping:
        drops = f"drop_last is set on {format_ranks(dropping)} and not on {format_ranks(keeping)}"
    if len(by_length) < 2:
        if not drops:
            return None
        text = f"{drops}: with other sizes of data the ranks get unequal numbers of batches"
        return case.finding("uneven-data", "warn", text, SAME_DROP_LAST)
    if 0 in by_length:
        without = by_length[0]
        text = f"{format_ranks(without)} {plural(len(without), 'gets', 'get')} no data at all: {_have(by_length)}"
        remedy = "split samples, not batches or files, over the ranks, or use fewer ranks"
        return case.finding("uneven-data", "fail", text, remedy, without[0])
    text = f"unequal numbers of batches: {_have(by_length)}. The run would hang at the end of the epoch"
    if not drops:
        return case.finding("uneven-data", "fail", text, EVEN)
    return case.finding("uneven-data", "fail", f"{text} ({drops})", SAME_DROP_LAST)


def _have(by_length: dict[int, list[int]]) -> str:
    """Write `rank 0 has 5, ranks 1-3 have 4`."""
    parts = [
        f"{format_ranks(ranks)} {plural(len(ranks), 'has', 'have')} {length:,}"
        for length, ranks in sorted(by_length.items(), reverse=True)
    ]
    text = ", ".join(parts[:LENGTHS_NAMED])
    if len(parts) > LENGTHS_NAMED:
        text += f", and {len(parts) - LENGTHS_NAMED} more lengths"
    return text


def workers(case: LoaderCase) -> Finding | None:
    """Find loader workers of a rank that each read the rank's whole share."""
    if not case.iterable or case.identity.key == "none" or case.within < 0.3 * case.reads:
        return None
    for rank, shard in case.shards.items():
        number = shard.facts.workers or 0
        count = case.counts[rank]
        if number < 2 or not count or count.total() < 1.5 * len(count):
            continue
        times = min(number, round(count.total() / len(count))) if case.complete else number
        text = f"each sample is read {times} times in a rank: its {number} loader workers each read the whole stream"
        remedy = "in __iter__ split by torch.utils.data.get_worker_info() too: id of num_workers"
        return case.finding("data-workers-repeat", "fail", text, remedy, rank)
    return None


def absent(case: LoaderCase, ranks: set[int]) -> Finding | None:
    """Name ranks that ran and never iterated this loader."""
    missing = ranks - set(case.shards)
    if not missing:
        return None
    reads = format_ranks(case.shards)
    facts = [shard.facts for shard in case.shards.values()]
    if any(one.module.startswith("accelerate.") for one in facts) and any("Dispatcher" in one.class_ for one in facts):
        return case.finding("data-dispatched", "ok", f"{reads} reads for all ranks and hands out batches")
    text = f"{format_ranks(missing)} never iterated the loader that {reads} did"
    return case.finding("data-absent", "unknown", text, "right if only those ranks are meant to read it")


def coverage(case: LoaderCase) -> Finding | None:
    """Say whether every sample is read, with a single rank's pass beside it."""
    reference = case.reference
    if reference is None or not reference.complete or not case.complete or case.identity.key == "none":
        return None
    if case.due is None:
        return _by_totals(case, sum(reference.sizes))
    missing = case.missing
    if not missing:
        return None
    due = len(case.due)
    figures = f"{missing:,} of {due:,} samples are read by no rank"
    dropped = any(shard.facts.drop_last for shard in case.shards.values())
    remainder = case.world * case.batch if dropped else case.world
    if missing < remainder:
        text = f"{figures}: the remainder at the end is dropped"
        # A DistributedSampler with drop_last has fewer samples than its share, rounded up.
        if dropped or (case.surplus is not None and case.surplus < 0):
            return case.finding("data-dropped", "ok", text)
        return case.finding("data-dropped", "warn", text)
    if _about(due, len(case.total) * case.world):
        text = f"sharded twice: each rank reads its share of a share, and {figures}"
        return case.finding("data-sharded-twice", "fail", text, KEEP_ONE)
    return case.finding("data-incomplete", "fail", f"{figures} ({format_percent(missing / due)})", COVER)


def _by_totals(case: LoaderCase, due: int) -> Finding:
    """Compare how many there are where contents are changed at random while they are read."""
    world = len(case.shards)
    reads = sum(sum(shard.sizes) for shard in case.shards.values())
    unsure = ("contents differ from pass to pass, so only numbers are compared",)
    if reads >= 1.5 * due and world > 1:
        text = f"the ranks read {samples(reads)} where one rank alone reads {due:,}: the loader is not sharded"
        return case.finding("data-not-sharded", "fail", text, "shard by RANK of WORLD_SIZE", evidence=unsure)
    if _about(due, reads * world) and world > 1:
        text = f"sharded twice: {reads:,} of {due:,} samples are read"
        return case.finding("data-sharded-twice", "fail", text, KEEP_ONE, evidence=unsure)
    if reads < due - world * case.batch:
        text = f"{due - reads:,} of {due:,} samples are read by no rank"
        return case.finding("data-incomplete", "fail", text, COVER, evidence=unsure)
    text = f"{unsure[0]}: {reads:,} read, {due:,} by one rank alone"
    remedy = "make augmentation repeatable for the audit: seed it by the sample"
    return case.finding("data-audit", "unknown", text, remedy)


def _about(one: int, other: int) -> bool:
    return abs(one - other) <= ABOUT * max(one, other)


def filled(case: LoaderCase) -> Finding | None:
    """Count padded duplicates at the end."""
    number = padded(case)
    if not number and not case.complete:
        number = case.surplus or 0  # not read yet
    if not 0 < number <= case.world * case.batch:
        return None
    padding = f"{number:,} padded {plural(number, 'sample')}"
    text = f"{padding} at the end of an epoch: read once more, to fill up the last batches"
    return case.finding("data-padding", "ok", text, "drop_last=True leaves the rest out instead")


def epochs(case: LoaderCase) -> Finding | None:
    """Find a shuffling sampler that gives every epoch the same order because set_epoch is never called."""
    stuck = [rank for rank, shard in case.shards.items() if shuffled(shard) and _repeats_its_order(shard)]
    if not stuck:
        return None
    text = f"set_epoch is never called: on {format_ranks(stuck)} every epoch has the order of the first"
    owner = "dataset" if case.iterable else "loader.sampler"
    return case.finding("data-set-epoch", "warn", text, f"call {owner}.set_epoch(epoch) before each epoch")


def _repeats_its_order(shard: Shard) -> bool:
    """Tell whether the first order that came twice did so under the same epoch of the sampler."""
    if not shard.facts.has_set_epoch:
        return False
    by_order: dict[str, list[Setting]] = {}
    for epoch in shard.orders:
        by_order.setdefault(epoch.order, []).append(epoch.set_to)
    for settings in by_order.values():
        if len(settings) > 1:
            return all(setting == settings[0] for setting in settings)
    return False


def shuffled(shard: Shard) -> bool:
    """Tell whether the sampler shuffles; where it does not say, indices that do not rise are a shuffle."""
    if shard.facts.shuffle is not None:
        return shard.facts.shuffle
    numbers = [index for index in shard.index if isinstance(index, int)]
    return numbers != sorted(numbers)


FAULTS = ("fail", "warn")
NOT_SPLIT = ("data-not", "data-same", "data-overlap", "data-sharded")


def judge(rows: Iterable[Row], layout: Layout) -> list[Finding]:
    """Say what the audit saw, loader by loader; never empty.

    `layout` gives each rank's node and local rank. Rows under rank -1 are a single rank's pass over all of the data."""
    ranks, loaders = gather(rows)
    findings = [one for case in cases_of(loaders, layout) for one in judge_case(case, ranks)]
    if findings:
        return findings
    text = f"no torch DataLoader was iterated on {format_ranks(ranks)}" if ranks else "no rank carried the audit"
    return [Finding("data-audit", "unknown", text, AUDIT_LOADER, check=CHECK)]


def cases_of(loaders: Mapping[str, Mapping[int, Shard]], layout: Layout) -> list[LoaderCase]:
    """Make a case of each loader."""
    cases = []
    for name, read in loaders.items():
        shards = {rank: shard for rank, shard in read.items() if rank != REFERENCE}
        cases.append(LoaderCase(name, shards, read.get(REFERENCE), layout, len(loaders) == 1))
    return cases


def judge_case(case: LoaderCase, ranks: set[int]) -> list[Finding]:
    """Make all findings on one loader; one `ok` that says what holds without a fault."""
    faults = [finding for finding in (uneven(case), workers(case), sharing(case), epochs(case)) if finding]
    more = [filled(case), absent(case, ranks)]
    if not any(finding.id.startswith(NOT_SPLIT) for finding in faults):
        more.insert(0, coverage(case))
    findings = [*faults, *(finding for finding in more if finding)]
    if not any(finding.status in (*FAULTS, "unknown") or finding.id == "data-dispatched" for finding in findings):
        findings.insert(0, _fine(case))
    return findings


def _fine(case: LoaderCase) -> Finding:
    if case.identity.key == "none":
        return case.finding("data-audit", "unknown", f"{case.identity.why}: nothing tells them apart")
    number = len(case.shards)
    data = case.facts.dataset_len
    read = samples(len(case.total))
    if number == 1:
        text = f"one rank reads {read} in {case.span}"
    elif case.due is not None and case.complete:
        text = f"data is split: {number} ranks read {read}, each by one rank"
    else:
        text = f"data is split: {read} seen in {case.span}, none by two of {number} ranks"
        if data is not None and case.identity.same is not False and (case.facts.sampler_len or 0) * number >= data:
            text += f". Together the samplers cover all {data:,}"
            if not case.identity.same:
                text += ", if all ranks hold one dataset"
    evidence = [case.identity.why]
    shards = case.shards.values()
    one_epoch = not any(order.epoch > 0 for shard in shards for order in shard.orders)
    if one_epoch and any(shuffled(shard) and shard.facts.has_set_epoch for shard in shards):
        evidence.append("one epoch was read, so it is not known whether set_epoch is called before the next")
    return case.finding("data-audit", "ok", text, evidence=tuple(evidence))
