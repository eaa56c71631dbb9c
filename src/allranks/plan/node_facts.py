"""What a plan asks of the facts of a node (pure)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import NamedTuple

from allranks.protocol.codec import decode_each
from allranks.protocol.facts import Address, InterfaceFacts
from allranks.protocol.jsontext import Json
from allranks.protocol.messages import AddressProbe
from allranks.protocol.plan_facts import NodeFacts, network_of


class LocalAddress(NamedTuple):
    """An entry of getifaddrs(3)."""

    name: str
    address: Address
    interface: InterfaceFacts


def gpu_count(facts: NodeFacts) -> int:
    """Count the GPUs of a node; 0 where that is not known."""
    if facts.gpus is None:
        return 0
    return facts.gpus.count_ or 0


def local_addresses(facts: NodeFacts) -> Iterator[LocalAddress]:
    """Give all addresses in the order of glibc's getifaddrs: all IPv4, then all IPv6."""
    for family in (4, 6):
        for interface in facts.interfaces:
            for address in interface.addresses:
                if address.family == family:
                    yield LocalAddress(address.label or interface.name, address, interface)


def global_addresses(facts: NodeFacts) -> list[str]:
    """Give those that are neither of the host alone nor of one link."""
    return [local.address.address for local in local_addresses(facts) if local.address.scope == "global"]


def outer_addresses(facts: NodeFacts) -> list[str]:
    """Give those by which other nodes may know this one."""
    outer = [plain(local.address.address) for local in local_addresses(facts) if not local.interface.loopback]
    return list(dict.fromkeys(outer))


def interface_of(facts: NodeFacts, address: str) -> str | None:
    """Name the interface that has an address."""
    wanted = plain(address)
    for local in local_addresses(facts):
        if plain(local.address.address) == wanted:
            return local.name
    return None


def on_link(facts: NodeFacts, address: str) -> str | None:
    """Name the interface whose subnet holds an address; None where there is none."""
    wanted = ipaddress.ip_address(plain(address))
    for name, local, interface in local_addresses(facts):
        if interface.up and not interface.loopback and wanted in network_of(local):
            return name
    return None


def plain(address: str) -> str:
    """Without a zone, and without the prefix of an IPv4 address mapped into IPv6."""
    text = address.partition("%")[0].lower()
    if "." in text:
        return text.removeprefix("::ffff:")
    return text


def read_probes(results: Json) -> tuple[AddressProbe, ...]:
    """Read what an agent, or a saved check of it, says of the addresses that it tried."""
    return tuple(decode_each(AddressProbe, results))
