"""The master's port is free and every node reaches it by one address.

The same proof as before a run (see `allranks.plan.network`), with its findings about interfaces.
"""

from __future__ import annotations

from allranks.protocol.messages import PortFailure

from ..compare import Findings, Nodes, having, values_of
from ..typed_facts import Request

ID = "gate"
GROUP = "network"
LEVEL = "quick"
NEEDS = "probes"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Say what the rendezvous check of a run would say; nothing where it was not tried."""
    proof = request.asked.gate
    if proof is None:
        return
    from allranks.plan import network  # here, as the next: neither ships to Python 3.8
    from allranks.settings.document import from_document

    if proof.error:
        failure = PortFailure(text=proof.error) if isinstance(proof.error, str) else proof.error
        yield network.port_taken(proof.name, failure, request.target)
        return
    facts = values_of(facts_by_node, lambda one: one.for_plan)
    for node, error in having(facts_by_node, lambda one: one.error(NEEDS)).items():
        yield network.not_tried(node, error)
    probes = {node: one.probes for node, one in facts_by_node.items() if not one.error(NEEDS)}
    if not probes:
        return
    yield from network.choose_address(from_document(request.asked.spec), proof.name, proof.port, facts, probes).findings
