"""Sub-groups: the ranks of one node, and one rank of every node."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ..lab import Lab, NotSupported, Test

COUNT = 1000
TURNS = 3


def node_groups(lab: Lab) -> str:
    """Ranks that share a node."""
    nodes = list(lab.job.nodes.values())
    if max(map(len, nodes)) < 2:
        raise NotSupported("one rank a node")
    _all_groups(lab, nodes)
    return f"{len(nodes)} groups of {_counts(nodes)} ranks in a node  {lab.use('float32', 'int64')}"


def across_groups(lab: Lab) -> str:
    """Ranks with the same place in their nodes."""
    nodes = list(lab.job.nodes.values())
    if len(nodes) < 2:
        raise NotSupported("one node")
    most = max(map(len, nodes))
    groups = [[ranks[at] for ranks in nodes if at < len(ranks)] for at in range(most)]
    _all_groups(lab, groups)
    return f"{len(groups)} groups of {_counts(groups)} ranks across nodes  {lab.use('float32', 'int64')}"


def _counts(groups: list[list[int]]) -> str:
    return "-".join(str(count) for count in sorted({len(ranks) for ranks in groups}))


def _all_groups(lab: Lab, groups: list[list[int]]) -> None:
    """Every rank makes every group, in the same order, as torch wants it; all groups work at once."""
    made = [dist.new_group(ranks, timeout=lab.patience) for ranks in groups]
    lab.line_up("groups")
    own = next((at for at, ranks in enumerate(groups) if lab.rank in ranks), None)
    if own is None:
        return lab.arrive()
    for turn in range(TURNS):
        for dtype in ("float32", "int64"):
            lab.arrive(turn)
            _in_group(lab, made[own], groups[own], turn, dtype)
    return None


def _in_group(lab: Lab, group: Any, ranks: list[int], turn: int, dtype: str) -> None:
    buffer = lab.give_shared(turn, COUNT, dtype, len(ranks))
    dist.all_reduce(buffer, group=group)
    lab.check_sum(buffer, ranks, turn, dtype)
    own = lab.give_moved(turn, COUNT, dtype)
    blocks = [lab.empty(COUNT, dtype) for _ in ranks]
    dist.all_gather(blocks, own, group=group)
    for source, block in zip(ranks, blocks):  # noqa: B905  (Python 3.9)
        lab.check_moved(block, source, turn, dtype)
    root = ranks[turn % len(ranks)]
    buffer = lab.give_moved(turn, COUNT, dtype) if lab.rank == root else lab.empty(COUNT, dtype)
    dist.broadcast(buffer, root, group=group)
    lab.check_moved(buffer, root, turn, dtype)


GROUPS = (Test("node_groups", node_groups), Test("across_groups", across_groups))
