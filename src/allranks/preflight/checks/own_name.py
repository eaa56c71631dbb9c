"""Every node's own host name resolves, and not to loopback.

Only a warning: MASTER_ADDR is an address and GLOO_SOCKET_IFNAME is set, so the ranks do not need it. What
else asks for the own name (RPC, a script's own socket.gethostbyname) does.
"""

from __future__ import annotations

import ipaddress
from typing import Sequence

from allranks.text import join_names, plural

from ..compare import Findings, Nodes, alike, evidence_of, nodes_with, those, warn
from ..typed_facts import Facts, Request

ID = "own_name"
GROUP = "network"
LEVEL = "quick"
BETWEEN_MACHINES = True


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """name-resolution and hostname-resolves-to-loopback, as warnings."""
    if len(facts_by_node) < 2:
        return
    names = {node: facts.own_name for node, facts in facts_by_node.items() if facts.get("own_name")}
    unresolved = nodes_with(names, lambda name: not name.addresses)
    if unresolved:
        message = f"{join_names(unresolved)} can't resolve {plural(len(unresolved), 'its', 'their')} own name"
        evidence = evidence_of(unresolved, lambda node: f"{facts_by_node[node].hostname or None}: {names[node].error}")
        remedy = _remedy(unresolved[0], facts_by_node[unresolved[0]])
        yield warn("name-resolution", unresolved, message, remedy, evidence)
    loops = those(names, lambda name: name.addresses and _all_loopback(name.addresses))
    for address, nodes in alike(loops, lambda name: name.addresses[0]).items():
        message = f"the own name of {join_names(nodes)} resolves to {address}, which no other node can reach"
        yield warn("hostname-resolves-to-loopback", nodes, message, _remedy(nodes[0], facts_by_node[nodes[0]]))


def _all_loopback(addresses: Sequence[str]) -> bool:
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)


def _remedy(node: str, facts: Facts) -> str:
    """Write the /etc/hosts line of the first node; allranks itself needs none."""
    usable = [address.address for one, address in facts.addresses if address.scope == "global" and not one.loopback]
    line = f"{[*usable, 'ADDRESS'][0]} {facts.hostname or node}"
    return f"put '{line}' into /etc/hosts of {node} for other programs (allranks sets what the ranks need)"
