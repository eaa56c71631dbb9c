"""No two entries of the host list are one machine: its GPUs would be used twice."""

from __future__ import annotations

from typing import Any

from allranks.findings import Finding, Where
from allranks.text import count_of

from ..compare import Nodes, gpu_count, part
from ..host import Request

ID = "same_machine"
GROUP = "host"
LEVEL = "quick"
BETWEEN_MACHINES = True


def judge(request: Request, facts_by_node: Nodes) -> list[Finding]:
    """duplicate-gpu where the machine has GPUs; a warning where ranks only share its cores."""
    first: dict[tuple[Any, ...], str] = {}
    findings = []
    for node, facts in facts_by_node.items():
        identity = part(facts, "identity")
        key = tuple(identity.get(k) for k in ("boot_id", "netns", "pidns"))
        if None in key:
            continue
        if key not in first:
            first[key] = node
            continue
        gpus = gpu_count(facts)
        message = f"{first[key]} and {node} are the same machine"
        if gpus:
            message += f": two nodes would use its {count_of(gpus, 'GPU')}"
        remedy = f"remove {node} from the list, or use --local 2 to try two nodes on one machine"
        findings.append(
            Finding(
                "duplicate-gpu" if gpus else ID,
                "fail" if gpus else "warn",
                message,
                remedy,
                Where(node=node, peer=first[key]),
            )
        )
    return findings
