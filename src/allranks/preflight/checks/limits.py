"""Hard limits of the ranks: the guard raises the soft ones to them, no further."""

from __future__ import annotations

from typing import Any, Mapping

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, by_value, part, place, size

ID = "limits"
GROUP = "host"
LEVEL = "quick"
FEW_FILES = 4096  # torch's loaders and NCCL take some hundred each
SMALL_MEMLOCK = 1 << 30  # ibv_reg_mr of NCCL's buffers counts against it


def judge(request: Mapping[str, Any], facts_by_node: Nodes) -> list[Finding]:
    """too-many-open-files and, where there is InfiniBand or RoCE, memlock-limit; both warnings."""
    return _files(facts_by_node) + _memlock(facts_by_node)


def _files(facts_by_node: Nodes) -> list[Finding]:
    values = {n: _hard(f, "nofile") for n, f in facts_by_node.items()}
    small = {n: v for n, v in values.items() if v is not None and 0 <= v < FEW_FILES}
    found = []
    for value, nodes in by_value(small).items():
        message = f"a process on {join_names(nodes)} may open {value} files at most"
        remedy = f"raise nofile in /etc/security/limits.conf of {nodes[0]} to 65536 or more"
        found.append(Finding("too-many-open-files", "warn", message, remedy, place(nodes)))
    return found


def _memlock(facts_by_node: Nodes) -> list[Finding]:
    small = {}
    for node, facts in facts_by_node.items():
        value = _hard(facts, "memlock")
        root = part(facts, "identity").get("uid") == 0  # CAP_IPC_LOCK
        if value is not None and 0 <= value < SMALL_MEMLOCK and part(facts, "nccl").get("rdma") and not root:
            small[node] = value
    found = []
    for value, nodes in by_value(small).items():
        message = (
            f"a process on {join_names(nodes)} may lock {size(value)} of memory, too little for InfiniBand or RoCE"
        )
        remedy = f"set memlock to unlimited in /etc/security/limits.conf of {nodes[0]} and log in again"
        found.append(Finding("memlock-limit", "warn", message, remedy, place(nodes)))
    return found


def _hard(facts: Mapping[str, Any], name: str) -> int | None:
    pair = part(facts, "limits").get(name)
    return int(pair[1]) if pair else None
