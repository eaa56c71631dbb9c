"""Every node's name leads to the same address, seen from every node.

allranks gives ranks addresses, so this matters to what asks for names itself: MPI, RPC, a script's own
socket.gethostbyname. A node's own name is the business of `own_name` (127.0.1.1 there is usual).
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Nodes, place
from ..host import Record, Request

ID = "peer_names"
GROUP = "network"
LEVEL = "full"
NEEDS = "peer_names"
BETWEEN_MACHINES = True


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """name-resolution, as warnings, for names that some nodes resolve otherwise than most."""
    views: Dict[str, Dict[str, Any]] = {}
    for node, facts in facts_by_node.items():
        for name, answer in (facts.get(ID) or {}).items():
            if name not in (facts.get("hostname"), node):
                views.setdefault(name, {})[node] = answer
    findings = []
    for name, by_node in views.items():
        findings += _judge_name(name, by_node)
    return findings


def _judge_name(name: str, by_node: Record) -> List[Finding]:
    groups: Dict[Tuple[str, ...], List[str]] = {}
    for node, answer in by_node.items():
        groups.setdefault(tuple(answer) if isinstance(answer, list) else (), []).append(node)
    resolved = {addresses: nodes for addresses, nodes in groups.items() if addresses}
    if not resolved or len(groups) < 2:
        return []  # nobody knows it (an alias of ssh's), or all agree
    most = max(resolved, key=lambda a: len(resolved[a]))
    if 2 * len(resolved[most]) <= len(by_node) and len(resolved) > 1:
        answers = "; ".join(f"{', '.join(a)} on {join_names(n)}" for a, n in resolved.items())
        message = f"the name {name} leads to different addresses: {answers}"
        where = place([node for nodes in resolved.values() for node in nodes])
        return [Finding("name-resolution", "warn", message, _remedy(name, [], "ADDRESS"), where)]
    findings = []
    for addresses, nodes in groups.items():
        if addresses != most:
            says = f"{plural(len(nodes), 'resolves', 'resolve')} {name} to {', '.join(addresses)}"
            says = says if addresses else f"can't resolve {name}"
            other = (
                f"the other {len(resolved[most])} resolve"
                if len(resolved[most]) > 1
                else f"{resolved[most][0]} resolves"
            )
            message = f"{join_names(nodes)} {says}; {other} it to {', '.join(most)}"
            findings.append(Finding("name-resolution", "warn", message, _remedy(name, nodes, most[0]), place(nodes)))
    return findings


def _remedy(name: str, nodes: List[str], address: str) -> str:
    where = f" of {join_names(nodes)}" if nodes else " of every node"
    return f"put '{address} {name}' into /etc/hosts{where}, or mend the name server"
