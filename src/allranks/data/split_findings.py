"""Rows of all ranks → findings: disjoint and complete, or what is wrong with the split of the data (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from allranks.findings import Finding
from allranks.text import format_ranks

from .case import CHECK, Layout, LoaderCase, samples
from .lengths import absent, coverage, epochs, filled, shuffled, uneven, workers
from .rows import AuditedLoader, RankPlace, Row, Shard, gather
from .sharing import sharing

FAULTS = ("fail", "warn")
NOT_SPLIT = ("data-not", "data-same", "data-overlap", "data-sharded")
MOST = 1 << 20  # ranks; a row that claims more is wrong


def judge(rows: Iterable[Row], layout: Layout | None = None, model_parallel: int = 1) -> list[Finding]:
    """Say what the audit saw, loader by loader; never empty.

    `layout` gives each rank's node and local rank; without it the rows' own figures count. Of each group of
    `model_parallel` consecutive ranks, which are to read the same, the first speaks for all. Rows under rank -1
    are a single rank's pass over all of the data."""
    ranks, loaders = gather(rows)
    findings: list[Finding] = []
    for loader, case in zip(loaders, cases_of(ranks, loaders, layout, model_parallel), strict=True):
        findings += _model_parallel(case, loader, model_parallel)
        readers: Collection[int] = case.shards
        if model_parallel == 1:
            readers = ranks
        findings += judge_case(case, set(readers))
    if findings:
        return findings
    text = "no rank carried the audit"
    if ranks:
        text = f"no torch DataLoader was iterated on {format_ranks(ranks)}"
    return [Finding("data-audit", "unknown", text, "allranks data audit --loader module:function", check=CHECK)]


def cases_of(
    ranks: Mapping[int, RankPlace],
    loaders: Sequence[AuditedLoader],
    layout: Layout | None = None,
    model_parallel: int = 1,
) -> list[LoaderCase]:
    """Make a case of each loader, with one rank of every model-parallel group."""
    world = min(max([len(ranks), *(place.world or 0 for place in ranks.values())]), MOST) // model_parallel or 1
    cases = []
    for loader in loaders:
        first_of_group: dict[int, Shard] = {}
        for rank, shard in sorted(loader.shards.items()):
            first_of_group.setdefault(rank // model_parallel, shard)
        shards = {shard.rank: shard for shard in first_of_group.values()}
        audited = AuditedLoader(loader.name, shards, loader.reference)
        cases.append(LoaderCase(audited, world, layout or _layout_of(ranks), len(loaders) == 1))
    return cases


def _layout_of(ranks: Mapping[int, RankPlace]) -> Layout:
    """Give node and local rank by what the ranks' environment said; ranks that say nothing are all on one node."""
    layout = {}
    for rank, place in ranks.items():
        local_rank = rank
        node = place.node or 0
        if place.local_rank is not None:
            local_rank = place.local_rank
            if place.node is None:
                node = rank - local_rank  # the rank of the node's first: another on every node
        layout[rank] = (str(node), local_rank)
    return layout


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


def _model_parallel(case: LoaderCase, loader: AuditedLoader, size: int) -> list[Finding]:
    odd = []
    for rank, shard in case.shards.items():
        first = rank // size * size
        others = [loader.shards[other].content for other in range(first, first + size) if other in loader.shards]
        if any(other[: len(shard.content)] != shard.content[: len(other)] for other in others):
            odd.append(rank)
    if not odd:
        return []
    text = f"the {size} ranks of a model-parallel group read different samples, from {format_ranks(odd)} on"
    return [case.finding("data-model-parallel", "fail", text, "shard by the data-parallel rank")]
