"""/dev/shm is large enough for NCCL within a node and for data-loader workers."""

from __future__ import annotations

from allranks.text import join_names

from ..compare import Findings, Nodes, by_value, size, those, values_of, warn
from ..typed_facts import Request

ID = "shm"
GROUP = "host"
LEVEL = "quick"
# With GPUs; without them only data-loader workers use it, and docker's default of 64 MB does for a few.
SMALL = {True: 1 << 30, False: 32 << 20}


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """shm-too-small, a warning."""
    small = those(facts_by_node, lambda facts: 0 <= facts.shm.bytes <= SMALL[facts.gpu_count > 0])
    for value, nodes in by_value(values_of(small, lambda facts: facts.shm.bytes)).items():
        message = f"/dev/shm on {join_names(nodes)} has {size(value)}, which NCCL and data-loader workers share"
        remedy = "sudo mount -o remount,size=50% /dev/shm, or in a container --shm-size=16g or --ipc=host"
        yield warn("shm-too-small", nodes, message, remedy)
