"""/dev/shm is large enough for NCCL within a node and for data-loader workers."""

from __future__ import annotations

from allranks.text import join_names

from ..compare import Findings, Nodes, by_value, size, warn
from ..typed_facts import Request

ID = "shm"
GROUP = "host"
LEVEL = "quick"
SMALL = 32 << 20  # without GPUs only data-loader workers use it; docker's default of 64 MB does for a few
SMALL_WITH_GPUS = 1 << 30


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """shm-too-small, a warning."""
    small = {}
    for node, facts in facts_by_node.items():
        if 0 <= facts.shm.bytes <= (SMALL_WITH_GPUS if facts.gpu_count else SMALL):
            small[node] = facts.shm.bytes
    for value, nodes in by_value(small).items():
        message = f"/dev/shm on {join_names(nodes)} has {size(value)}, which NCCL and data-loader workers share"
        remedy = "sudo mount -o remount,size=50% /dev/shm, or in a container --shm-size=16g or --ipc=host"
        yield warn("shm-too-small", nodes, message, remedy)
