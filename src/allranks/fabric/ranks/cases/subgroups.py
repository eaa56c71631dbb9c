"""Sub-groups: the ranks of one node, and one rank of every node."""

from __future__ import annotations

import torch.distributed as dist

from allranks.text import count_of

from ..lab import Lab, LabGroup, NotSupported
from .rounds import DTYPES, all_gather_round, broadcast_round, rounds, sum_round

COUNTS = (1000, 1000, 1000)


def node_groups(lab: Lab) -> str:
    """Group the ranks that share a node."""
    groups = list(lab.nodes.values())
    if max(map(len, groups)) < 2:
        raise NotSupported("one rank a node")
    return _test_groups(lab, groups, "in a node")


def across_groups(lab: Lab) -> str:
    """Group the ranks with the same place in their nodes."""
    nodes = list(lab.nodes.values())
    if len(nodes) < 2:
        raise NotSupported("one node")
    largest = max(map(len, nodes))
    groups = [[ranks[at] for ranks in nodes if at < len(ranks)] for at in range(largest)]
    return _test_groups(lab, groups, "across nodes")


def _test_groups(lab: Lab, groups: list[list[int]], where: str) -> str:
    """Make every group on every rank, in the same order, as torch wants it; all groups work at once."""
    made = [LabGroup(ranks, dist.new_group(ranks, timeout=lab.patience)) for ranks in groups]
    lab.line_up("groups")
    lab.arrive()
    for group in made:
        if lab.rank in group.ranks:
            _use_group(lab, group)
    sizes = "-".join(str(size) for size in sorted({len(ranks) for ranks in groups}))
    return f"{count_of(len(groups), 'group')} of {sizes} ranks {where}  {lab.use(*DTYPES)}"


def _use_group(lab: Lab, group: LabGroup) -> None:
    for turn, count, dtype in rounds(COUNTS):
        sum_round(lab, turn, count, dtype, group)
        all_gather_round(lab, turn, count, dtype, group)
        broadcast_round(lab, turn, count, dtype, group.ranks[turn % len(group.ranks)], group)


TESTS = (node_groups, across_groups)
