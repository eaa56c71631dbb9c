"""The master's port is free and every node reaches it by one address.

The same proof as before a run (see `allranks.plan.network`), with its findings about interfaces.
"""

from __future__ import annotations

from typing import List

from allranks.findings import Finding

from ..compare import Nodes, target
from ..host import Request

ID = "gate"
GROUP = "network"
LEVEL = "quick"
NEEDS = "probes"


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """What the gate of a run would say; nothing where it was not tried."""
    gate = request.get("gate") or {}
    if not gate:
        return []
    from allranks.plan.facts import read_facts, read_probes  # here: they do not ship to Python 3.8
    from allranks.plan.network import choose_address, port_taken
    from allranks.settings.document import from_document

    if gate.get("error"):
        error = gate["error"]
        known = error if isinstance(error, dict) else {"text": str(error)}
        return [port_taken(gate["name"], known, target(request))]
    facts = {name: read_facts(found) for name, found in facts_by_node.items()}
    probes = {name: read_probes(found.get("probes")) for name, found in facts_by_node.items()}
    spec = from_document(request["spec"])
    return list(choose_address(spec, gate["name"], int(gate["port"]), facts, probes).findings)
