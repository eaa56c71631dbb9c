"""Every node's name leads to the same address, seen from every node.

allranks gives ranks addresses, so this matters to what asks for names itself: MPI, RPC, a script's own
socket.gethostbyname. A node's own name is the business of `own_name` (127.0.1.1 there is usual).
"""

from __future__ import annotations

from typing import Dict, Tuple

from allranks.protocol.jsontext import Json
from allranks.text import join_names, join_words

from ..compare import Findings, Nodes, by_item, by_value, collected, others, warn, who
from ..typed_facts import Request

ID = "peer_names"
GROUP = "network"
LEVEL = "full"
NEEDS = "peer_names"
BETWEEN_MACHINES = True
LABEL = "name-resolution"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """name-resolution, as warnings, for names that some nodes resolve otherwise than most."""
    for name, answers in by_item(collected(facts_by_node, ID, Dict[str, Json])).items():
        by_node: Dict[str, Tuple[str, ...]] = {}  # addresses; empty where the name does not resolve
        for node, answer in answers.items():
            if name not in (facts_by_node[node].hostname, node):
                by_node[node] = tuple(map(str, answer)) if isinstance(answer, list) else ()
        groups = by_value(by_node)
        resolved = {addresses: nodes for addresses, nodes in groups.items() if addresses}
        if not resolved or len(groups) < 2:
            continue  # no node resolves it (an alias of ssh's), or all agree
        most = next(iter(resolved))
        if 2 * len(resolved[most]) <= len(by_node) and len(resolved) > 1:
            shown = join_words([f"{', '.join(a)} ({join_names(nodes)})" for a, nodes in resolved.items()])
            message = f"the name {name} leads to different addresses: {shown}"
            remedy = _remedy(f"ADDRESS {name}", "every node")
            yield warn(LABEL, [node for nodes in resolved.values() for node in nodes], message, remedy)
            continue
        rest = others(resolved[most], f"resolve it to {', '.join(most)}", f"resolves it to {', '.join(most)}")
        for addresses, nodes in groups.items():
            if addresses != most:
                message = f"{who(nodes, 'resolves', 'resolve')} {name} to {', '.join(addresses)}{rest}"
                if not addresses:
                    message = f"{join_names(nodes)} can't resolve {name}{rest}"
                yield warn(LABEL, nodes, message, _remedy(f"{most[0]} {name}", join_names(nodes)))


def _remedy(line: str, where: str) -> str:
    return f"put '{line}' into /etc/hosts of {where}, or mend the name server"
