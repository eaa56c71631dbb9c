"""Rows of all ranks → findings: disjoint and complete, or what is wrong with the split of the data (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from allranks.findings import Finding

from .case import CHECK, Case, Layout, named, plural
from .lengths import absent, coverage, epochs, filled, shuffled, uneven
from .rows import Audited, Row, Shard, gather, whole
from .sharing import sharing, workers

FAULTS = ("fail", "warn")
MOST = 1 << 20  # ranks; a row that claims more is wrong


def judge(rows: Iterable[Row], layout: Layout | None = None, model_parallel: int = 1) -> list[Finding]:
    """What the audit says, loader by loader; never empty.

    `layout` gives each rank's node and local rank; without it the rows' own figures count. Of each group of
    `model_parallel` consecutive ranks, which are to read the same, the first speaks for all. Rows under rank -1
    are a single rank's pass over all of the data."""
    ranks, loaders = gather(rows)
    cases = cases_of(ranks, loaders, layout, model_parallel)
    if not cases:
        text = f"no torch DataLoader was iterated on {named(ranks)}" if ranks else "no rank carried the audit"
        return [Finding("data-audit", "unknown", text, "allranks data audit --loader module:function", check=CHECK)]
    found: list[Finding] = []
    for case in cases:
        found += _groups(case, loaders, model_parallel)
        found += judge_case(case, set(ranks) if model_parallel == 1 else set(case.shards))
    return found


def cases_of(
    ranks: dict[int, Row], loaders: Sequence[Audited], layout: Layout | None = None, model_parallel: int = 1
) -> list[Case]:
    """The loaders, each with one rank of every model-parallel group."""
    layout = layout or layout_of(ranks, loaders)
    rows = [*ranks.values(), *(shard.facts for one in loaders for shard in one.shards.values())]
    told = [whole(row.get("world")) or 0 for row in rows]
    world = min(max([len(ranks), *told]), MOST) // model_parallel or 1
    cases = []
    for one in loaders:
        first: dict[int, Shard] = {}
        for rank, shard in sorted(one.shards.items()):
            first.setdefault(rank // model_parallel, shard)
        picked = {shard.rank: shard for shard in first.values()}
        cases.append(Case(Audited(one.name, picked, one.reference), world, layout, len(loaders) == 1))
    return cases


def layout_of(ranks: dict[int, Row], loaders: Sequence[Audited]) -> Layout:
    """Node and local rank by what the ranks' environment said; ranks that say nothing are all on one node."""
    rows = {**ranks}
    for one in loaders:
        rows.update({rank: {**shard.facts, **rows.get(rank, {})} for rank, shard in one.shards.items()})
    found: dict[int, tuple[str, int]] = {}
    for rank, row in rows.items():
        local, node = whole(row.get("local_rank")), whole(row.get("node"))
        if local is not None and node is None:
            node = rank - local  # the rank of the node's first: another on every node
        found[rank] = (str(node or 0), rank if local is None else local)
    return found


def judge_case(case: Case, ranks: set[int]) -> list[Finding]:
    """All findings on one loader; one `ok` that says what holds where there is no fault."""
    found = [finding for finding in (uneven(case), workers(case), sharing(case), epochs(case)) if finding]
    if not any(finding.id.startswith(("data-not", "data-same", "data-overlap", "data-sharded")) for finding in found):
        found += [finding for finding in (coverage(case),) if finding]
    found += [finding for finding in (filled(case), absent(case, ranks)) if finding]
    if not any(finding.status in (*FAULTS, "unknown") or finding.id == "data-dispatched" for finding in found):
        found.insert(0, _fine(case))
    return found


def _fine(case: Case) -> Finding:
    """What was seen to hold."""
    if case.identity.key == "none":
        return case.finding("data-audit", "unknown", f"{case.identity.why}: nothing tells them apart")
    number = len(case.shards)
    unseen = (case.identity.why, *_unseen(case))
    if number == 1:
        return case.finding("data-audit", "ok", f"one rank reads {plural(len(case.total), 'sample')} in {case.span}",
                            evidence=unseen)  # fmt: skip
    if case.due is not None and case.complete:
        text = f"disjoint and complete: {number} ranks read {plural(len(case.total), 'sample')}, each by one rank"
        return case.finding("data-audit", "ok", text, evidence=unseen)
    text = f"disjoint: of {plural(len(case.total), 'sample')} in {case.span} none was read by two of {number} ranks"
    each, data = whole(case.fact("sampler_len")), whole(case.fact("dataset_len"))
    if each is not None and data is not None and case.identity.same is not False and each * number >= data:
        text += f"; complete: together their samplers give all {data:,}"
        text += "" if case.identity.same else ", if all ranks hold one dataset"
    return case.finding("data-audit", "ok", text, evidence=unseen)


def _unseen(case: Case) -> tuple[str, ...]:
    """What only a second epoch shows."""
    if not any(shuffled(shard) and shard.facts.get("has_set_epoch") for shard in case.shards.values()):
        return ()
    if any(number > 0 for shard in case.shards.values() for number, _, _ in shard.orders):
        return ()
    return ("one epoch was seen: whether set_epoch is called before the next cannot be told",)


def _groups(case: Case, loaders: Sequence[Audited], model_parallel: int) -> list[Finding]:
    """Ranks of a model-parallel group that do not read the same."""
    whole_loader = next(one for one in loaders if one.name == case.audited.name)
    odd = []
    for rank, shard in case.shards.items() if model_parallel > 1 else ():
        group = range(rank // model_parallel * model_parallel, (rank // model_parallel + 1) * model_parallel)
        others = [whole_loader.shards[r] for r in group if r in whole_loader.shards]
        if any(other.content[: len(shard.content)] != shard.content[: len(other.content)] for other in others):
            odd.append(rank)
    if not odd:
        return []
    text = f"the {model_parallel} ranks of a model-parallel group read different samples, from {named(odd)} on"
    return [case.finding("data-model-parallel", "fail", text, "shard by the data-parallel rank")]
