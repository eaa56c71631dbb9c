"""By which addresses nodes try each other: the one Gloo will use, and the others that share a subnet. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from allranks.protocol.messages import AddressProbe
from allranks.protocol.plan_facts import NodeFacts
from allranks.settings import RunSpec

from .interfaces import is_host_local
from .network import choose_address, offered
from .node_facts import local_addresses, on_link

MAX_WAYS = 15


def main_addresses(
    spec: RunSpec,
    master: str,
    port: int,
    master_addresses: Sequence[str],
    facts: Mapping[str, NodeFacts],
    probes: Mapping[str, Sequence[AddressProbe]],
) -> dict[str, str]:
    """Each node's address on the interface that Gloo will use (the way to the master); without
    that choice (`port` is 0), the first address that would be offered. Nodes without any are left out."""
    family = _family(master_addresses)
    interfaces = choose_address(spec, master, port, facts, probes).interfaces if port else {}
    addresses = {}
    for name, node in facts.items():
        gloo = interfaces[name].gloo if name in interfaces else None
        offers = [offer.address for offer in offered(facts, name, spec.rendezvous.network)]
        for local, address, _ in local_addresses(node):
            if local == gloo and address.scope != "link" and address.family == family:
                offers.insert(0, address.address)
                break
        if offers:
            addresses[name] = offers[0]
    return addresses


def _family(addresses: Sequence[str]) -> int:
    for address in addresses:
        try:
            return ipaddress.ip_address(address.partition("%")[0]).version
        except ValueError:
            continue
    return 4


def other_ways(node: NodeFacts, peer: NodeFacts, main: str) -> list[str]:
    """List a peer's further addresses on subnets that this node is on as well: rails, a storage network."""
    ways = []
    for name, item, interface in local_addresses(peer):
        usable = interface.running and item.scope == "global" and not interface.loopback
        if usable and item.address != main and not is_host_local(name) and on_link(node, item.address):
            ways.append(item.address)
    return ways[:MAX_WAYS]
