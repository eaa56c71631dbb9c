"""Every node's name leads to the same address, seen from every node.

allranks gives ranks addresses, so this matters to what asks for names itself: MPI, RPC, a script's own
socket.gethostbyname. A node's own name is the business of `own_name` (127.0.1.1 there is usual).
"""

from __future__ import annotations

from typing import Dict, Tuple

from allranks.text import join_names, join_words, plural

from ..compare import Findings, Nodes, Request, by_item, by_value, others, warn

ID = "peer_names"
GROUP = "network"
LEVEL = "full"
NEEDS = "peer_names"
BETWEEN_MACHINES = True
LABEL = "name-resolution"
Answers = Tuple[str, ...]  # addresses; empty where the name does not resolve


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """name-resolution, as warnings, for names that some nodes resolve otherwise than most."""
    views: Dict[str, Dict[str, Answers]] = {}  # what the names of the other nodes lead to from each node
    for node, facts in facts_by_node.items():
        answers = facts.get(ID)
        named = answers.items() if isinstance(answers, dict) else ()
        lists = {name: answer if isinstance(answer, list) else () for name, answer in named}
        views[node] = {name: tuple(map(str, one)) for name, one in lists.items() if name not in (facts.hostname, node)}
    for name, by_node in by_item(views).items():
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
                answer = f"{plural(len(nodes), 'resolves', 'resolve')} {name} to {', '.join(addresses)}"
                if not addresses:
                    answer = f"can't resolve {name}"
                remedy = _remedy(f"{most[0]} {name}", join_names(nodes))
                yield warn(LABEL, nodes, f"{join_names(nodes)} {answer}{rest}", remedy)


def _remedy(line: str, where: str) -> str:
    return f"put '{line}' into /etc/hosts of {where}, or mend the name server"
