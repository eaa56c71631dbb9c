"""By which addresses nodes try each other: the one Gloo will use, and the others that share a subnet. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from allranks.settings import RunSpec

from .interfaces import Facts, getifaddrs, is_host_local, on_link
from .network import choose_address, offered

MAX_WAYS = 15


def main_addresses(spec: RunSpec, gate: Mapping[str, Any], facts: Mapping[str, Facts]) -> dict[str, str]:
    """Each node's address on the interface that Gloo will use (the way to the master); where there is no
    such choice, the first address that would be offered. Nodes without any are left out."""
    family = _family(gate, facts, spec)
    chosen = _interfaces(spec, gate, facts)
    found = {}
    for name, mine in facts.items():
        on_it = [
            a["address"]
            for i, a, _ in getifaddrs(mine)
            if i == chosen.get(name) and a.get("scope") != "link" and a["family"] == family
        ]
        offers = [o.address for o in offered({**facts, name: mine}, name, spec.network)]
        first = (on_it or offers)[:1]
        if first:
            found[name] = first[0]
    return found


def _interfaces(spec: RunSpec, gate: Mapping[str, Any], facts: Mapping[str, Facts]) -> dict[str, str | None]:
    probes = {name: f.get("probes") or () for name, f in facts.items()}
    if not gate.get("port"):
        return {}
    choice = choose_address(spec, str(gate["name"]), int(gate["port"]), facts, probes)
    return {name: c.gloo for name, c in choice.interfaces.items()}


def _family(gate: Mapping[str, Any], facts: Mapping[str, Facts], spec: RunSpec) -> int:
    for address in gate.get("addresses") or ():
        try:
            return ipaddress.ip_address(str(address).partition("%")[0]).version
        except ValueError:
            continue
    return 4


def other_ways(mine: Facts, peers: Facts, main: str) -> list[str]:
    """A peer's further addresses on subnets that this node is on as well: rails, a storage network."""
    found = []
    for name, item, interface in getifaddrs(peers):
        usable = interface.get("running") and item.get("scope") == "global" and not interface.get("loopback")
        if usable and item["address"] != main and not is_host_local(name) and on_link(mine, item["address"]):
            found.append(str(item["address"]))
    return found[:MAX_WAYS]
