"""No two entries of the host list are one machine: its GPUs would be used twice."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

from allranks.findings import Finding, Where
from allranks.text import count_of

from ..compare import Findings, Nodes
from ..typed_facts import Request

ID = "same_machine"
GROUP = "host"
LEVEL = "quick"
BETWEEN_MACHINES = True


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """duplicate-gpu where the machine has GPUs; a warning where ranks only share its cores."""
    first: Dict[Tuple[Optional[str], Optional[int], Optional[int]], str] = {}
    for node, facts in facts_by_node.items():
        identity = facts.identity
        machine = (identity.boot_id, identity.netns, identity.pidns)
        if not all(machine):
            continue
        earlier = first.setdefault(machine, node)
        if earlier == node:
            continue
        message = f"{earlier} and {node} are the same machine"
        remedy = f"remove {node} from the list, or use --local 2 to try two nodes on one machine"
        where = Where(node=node, peer=earlier)
        if facts.gpu_count:
            message += f": two nodes would use its {count_of(facts.gpu_count, 'GPU')}"
            yield Finding("duplicate-gpu", "fail", message, remedy, where)
        else:
            yield Finding(ID, "warn", message, remedy, where)
