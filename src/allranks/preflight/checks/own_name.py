"""Every node's own host name resolves, and not to loopback.

Only a warning: MASTER_ADDR is an address and GLOO_SOCKET_IFNAME is set, so the ranks do not need it; what
else asks for the own name (RPC, a script's own socket.gethostbyname) does.
"""

from __future__ import annotations

import ipaddress
from typing import Sequence

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Facts, Nodes, place
from ..host import Request

ID = "own_name"
GROUP = "network"
LEVEL = "quick"
BETWEEN_MACHINES = True


def judge(request: Request, facts_by_node: Nodes) -> list[Finding]:
    """name-resolution and hostname-resolves-to-loopback, as warnings."""
    if len(facts_by_node) < 2:
        return []
    names = {n: f.get("own_name") or {} for n, f in facts_by_node.items()}
    unknown = [n for n, o in names.items() if o and not o.get("addresses")]
    loops = [n for n, o in names.items() if _all_loopback(o.get("addresses") or ())]
    findings = []
    if unknown:
        message = f"{join_names(unknown)} can't resolve {plural(len(unknown), 'its', 'their')} own name"
        evidence = tuple(f"{n}: {facts_by_node[n].get('hostname')}: {names[n].get('error')}" for n in unknown)
        findings.append(_finding("name-resolution", message, unknown, facts_by_node, evidence))
    if loops:
        address = names[loops[0]]["addresses"][0]
        message = f"the own name of {join_names(loops)} resolves to {address}, which nobody else can reach"
        findings.append(_finding("hostname-resolves-to-loopback", message, loops, facts_by_node, ()))
    return findings


def _all_loopback(addresses: Sequence[str]) -> bool:
    return bool(addresses) and all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in addresses)


def _finding(cause: str, message: str, nodes: list[str], facts: Nodes, evidence: tuple[str, ...]) -> Finding:
    """The /etc/hosts line of the first node; allranks itself needs none."""
    first = nodes[0]
    name = facts[first].get("hostname") or first
    line = f"{_address(facts[first])} {name}"
    remedy = f"allranks sets what the ranks need; for the rest put '{line}' into /etc/hosts of {first}"
    return Finding(cause, "warn", message, remedy, place(nodes), evidence)


def _address(facts: Facts) -> str:
    items = facts.get("interfaces")
    for item in items if isinstance(items, list) else ():
        for address in item.get("addresses") or ():
            if address.get("scope") == "global" and not item.get("loopback"):
                return str(address["address"])
    return "ADDRESS"
