"""Rules on which ranks read the same samples (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from allranks.findings import Finding

from .case import ALIKE, Case, listed, named, plural
from .rows import whole

SHARD = "use DistributedSampler(dataset), or shard the stream by the global rank (RANK of WORLD_SIZE)"
BY_RANK = (
    "shard by the global rank: num_replicas=dist.get_world_size(), rank=dist.get_rank() (RANK, not LOCAL_RANK); "
    "right as it is only if these ranks are one model-parallel group"
)
MANY = 0.02  # of all reads: from here on contents that two ranks share are no coincidence of the data


def sharing(case: Case) -> Finding | None:
    """The one sentence that says how the ranks' samples overlap; None where they do not."""
    if len(case.shards) < 2 or case.identity.key == "none":
        return None
    if case.shared and not padded(case):
        return same(case) or overlap(case)
    return twice(case) or unshrunk(case)


def padded(case: Case) -> int:
    """Reads that only fill up the last batches; 0 where there are none, or repetition has another reason."""
    if case.repeated <= 0:
        return 0
    if case.repeated <= allowance(case):
        return case.repeated
    return case.repeated if case.complete and in_last_batches(case) else 0


def allowance(case: Case) -> int:
    """How many samples the ranks' DistributedSamplers repeat, by their own figures."""
    each, data = whole(case.fact("sampler_len")), whole(case.fact("dataset_len"))
    if case.fact("replicas") != case.world or each is None or data is None or case.identity.same is False:
        return 0
    extra = each * case.world - data
    return extra if 0 <= extra < max(case.world, case.world * case.batch) else 0


def in_last_batches(case: Case) -> bool:
    """Whether all repeated reads but the first are in some rank's last batch, and few."""
    if case.repeated >= case.world * case.batch or any(0 < s.noted < 2 for s in case.shards.values()):
        return False
    last: dict[object, int] = {}
    for rank, shard in case.shards.items():
        size = shard.sizes[-1] if shard.sizes else 0
        for key in case.keys[rank][-size:] if size else []:
            last[key] = last.get(key, 0) + 1
    due: Mapping[object, int] = case.due or {}
    return all(last.get(k, 0) >= n - max(1, due.get(k, 1)) for k, n in case.total.items() if n > 1)


def alike(case: Case) -> list[list[int]]:
    """Ranks with (nearly) the same samples, in groups; ranks without samples are left out."""
    exact: dict[frozenset[object], list[int]] = {}
    for rank, count in case.counts.items():
        if count:
            exact.setdefault(frozenset(count), []).append(rank)
    groups: list[tuple[frozenset[object], list[int]]] = []
    for keys, ranks in exact.items():
        for at, (other, members) in enumerate(groups[:64]):
            if len(keys & other) >= ALIKE * min(len(keys), len(other)):
                groups[at] = (other, [*members, *ranks])
                break
        else:
            groups.append((keys, list(ranks)))
    return [sorted(members) for _, members in groups]


def same(case: Case) -> Finding | None:
    """Ranks that read the same samples: all of them, those of a node, those with one local rank, or some."""
    groups = alike(case)
    several = [group for group in groups if len(group) > 1]
    if not several:
        return None
    drawn = ", drawn with replacement from the same seed" if case.fact("replacement") is True else ""
    if len(groups) == 1:
        orders = {tuple(keys) for keys in case.keys.values()}
        drawn = drawn or (", each shuffled differently" if len(orders) > 1 else "")
        text = f"all {len(groups[0])} ranks read the same samples{drawn}: the loader is not sharded"
        return case.finding("data-not-sharded", "fail", text, SHARD)
    places = [[case.place(rank) for rank in group] for group in groups]
    nodes = [{node for node, _ in group} for group in places]
    locals_ = [{local for _, local in group} for group in places]
    if len(several) == len(groups) and all(len(one) == 1 for one in locals_):
        by_node: dict[str, list[int]] = {}
        for group in groups:
            for rank in group:
                by_node.setdefault(case.place(rank)[0], []).append(rank)
        text = f"{_each(list(by_node.values()))} read the same samples{drawn}: the loader shards by local rank"
        return case.finding("data-same-samples", "fail", text, BY_RANK)
    if len(several) == len(groups) and all(len(one) == 1 for one in nodes):
        text = f"{_each(groups, ' among themselves')} read the same samples{drawn}: the loader splits by node only"
        return case.finding("data-same-samples", "fail", text, BY_RANK)
    text = f"{_each(several, ' among themselves')} read the same samples{drawn}"
    return case.finding("data-same-samples", "fail", text, BY_RANK)


def _each(groups: list[list[int]], more: str = "") -> str:
    """`ranks 0–7 and 8–15`."""
    first, *others = groups
    return listed([named(first), *(named(group).split(" ", 1)[1] for group in others)]) + (more if others else "")


def overlap(case: Case) -> Finding | None:
    """Samples that several ranks happen to read."""
    number, indexed = len(case.shared), case.identity.key == "index"
    if not indexed and case.due is None and number <= max(MANY, 3 * case.within / case.reads) * len(case.total):
        return None
    if indexed and number <= allowance(case):
        return None
    first = sorted({rank for ranks in list(case.shared.values())[:64] for rank in ranks})
    share = f"{100 * number / len(case.total):.0f} % of {plural(len(case.total), 'sample')} in {case.span}"
    whole_data, data = case.fact("sampler_len"), case.fact("dataset_len")
    if case.fact("replacement") is True or (indexed and case.within):
        why = "each rank draws with replacement from all of the data, and they overlap by chance"
    elif whole_data is not None and whole_data == data and case.identity.same is not False:
        why = f"each rank goes through all {data:,} samples, shuffled differently: the loader is not sharded"
    elif case.complete and case.repeated >= 0.8 * (len(case.shards) - 1) * len(case.total):
        why = "each rank reads all of the data, in an order of its own: the loader is not sharded"
    else:
        why = "they overlap by chance: the ranks do not agree on one order, or draw on their own"
    text = f"{named(first)} read samples that others read too ({share}): {why}"
    return case.finding("data-overlap", "fail", text, SHARD + ", with one seed on all ranks")


def twice(case: Case) -> Finding | None:
    """Datasets that are already a rank's share, and a sampler that shares them out again; by figures alone."""
    if case.due is not None or (whole(case.fact("replicas")) or 1) == 1 or case.identity.same is not False:
        return None
    held = {shard.facts.get("identity") for shard in case.shards.values()}
    each, data = whole(case.fact("sampler_len")), whole(case.fact("dataset_len"))
    if each is None or data is None or held & {None, ""} or len(held) < len(case.shards):
        return None
    text = (
        f"sharded twice: each rank holds a dataset of its own with {data:,} samples, and its sampler takes "
        f"{each:,} of them, one in {case.fact('replicas')}: the rest is read by nobody"
    )
    return case.finding("data-sharded-twice", "fail", text, "keep one of the two: the split dataset or the sampler")


def unshrunk(case: Case) -> Finding | None:
    """A sampler as long as the dataset, on every rank."""
    each, data = whole(case.fact("sampler_len")), whole(case.fact("dataset_len"))
    if case.complete or each is None or each != data or case.iterable:
        return None
    if case.identity.same is False or case.fact("replicas") == case.world:
        return None
    if case.fact("replacement") is True:
        text = f"each of {case.world} ranks draws {each:,} samples of all {data:,}: they overlap by chance"
        return case.finding("data-overlap", "warn", text, SHARD)
    if case.identity.same is None:
        text = f"each rank reads all {data:,} samples of its dataset; whether these are one dataset could not be seen"
        return case.finding("data-not-sharded", "unknown", text, "allranks data audit --loader module:function")
    text = (
        f"the loader's length does not shrink with the world size: each of {case.world} ranks would read all "
        f"{data:,} samples"
    )
    return case.finding("data-not-sharded", "fail", text, SHARD)


def workers(case: Case) -> Finding | None:
    """Loader workers of a rank that each read the rank's whole share."""
    for rank, shard in case.shards.items():
        number = whole(shard.facts.get("workers")) or 0
        count = case.counts[rank]
        if not case.iterable or number < 2 or case.identity.key == "none" or not count:
            continue
        if count.total() >= 1.5 * len(count) and case.within >= 0.3 * case.reads:
            times = min(number, round(count.total() / len(count))) if case.complete else number
            text = (
                f"each sample is read {times} times in a rank: its {number} loader workers each read the whole stream"
            )
            remedy = "in __iter__ split by torch.utils.data.get_worker_info() too: id of num_workers"
            return case.finding("data-workers-repeat", "fail", text, remedy, rank)
    return None
