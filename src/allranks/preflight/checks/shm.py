"""/dev/shm is large enough for NCCL within a node and for data-loader workers."""

from __future__ import annotations

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, by_value, gpu_count, part, place, size
from ..host import Request

ID = "shm"
GROUP = "host"
LEVEL = "quick"
SMALL = 32 << 20  # without GPUs only data-loader workers use it; docker's default of 64 MB does for a few
SMALL_WITH_GPUS = 1 << 30


def judge(request: Request, facts_by_node: Nodes) -> list[Finding]:
    """shm-too-small, a warning."""
    small = {}
    for node, facts in facts_by_node.items():
        shm = part(facts, "shm")
        needed = SMALL_WITH_GPUS if gpu_count(facts) else SMALL
        if shm and int(shm.get("bytes") or 0) <= needed and int(shm.get("bytes") or 0) >= 0:
            small[node] = int(shm.get("bytes") or 0)
    findings = []
    for value, nodes in by_value(small).items():
        message = f"/dev/shm on {join_names(nodes)} has {size(value)}; NCCL and data-loader workers share it"
        remedy = "in a container: --shm-size=16g or --ipc=host; else: sudo mount -o remount,size=50% /dev/shm"
        findings.append(Finding("shm-too-small", "warn", message, remedy, place(nodes)))
    return findings
