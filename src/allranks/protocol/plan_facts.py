"""The facts of a node as the gang, the plan and the checks read them; no agent needs this to start (pure, Python 3.8).

`NodeFacts` has the parts that a plan reads: each is as its default where it is absent or failed.
"""

from __future__ import annotations

import ipaddress
from typing import Iterator, Mapping, Optional, Tuple, Union

from .codec import DecodeError, decode, decode_each, decode_parts
from .facts import Address, Gpus, Identity, InterfaceFacts, Interpreter, Memory, NcclFacts, NodeScheduler, OwnName
from .jsontext import Json
from .messages import AddressProbe
from .records import NamedTuple

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


def network_of(address: Address) -> Network:
    """Give the network that an address lies in; raise ValueError where it is not an address."""
    return ipaddress.ip_network("%s/%d" % (address.address, address.prefix), strict=False)


class AccelerateConfig(NamedTuple):
    """What the configuration that accelerate will read says of its processes, as the check of that name has it."""

    distributed_type: Optional[str] = None
    use_cpu: Union[str, bool, None] = None
    error: Optional[str] = None


class NodeFacts(NamedTuple):
    """What the plan reads of one node; `gpus` and `accelerate_config` are None where it was not looked at."""

    interfaces: Tuple[InterfaceFacts, ...] = ()
    gpus: Optional[Gpus] = None
    mem: Memory = Memory()
    identity: Identity = Identity()
    nccl: NcclFacts = NcclFacts()
    own_name: OwnName = OwnName()
    interpreter: Interpreter = Interpreter()
    accelerate_config: Optional[AccelerateConfig] = None
    scheduler: NodeScheduler = NodeScheduler()


def read_facts(facts: Json) -> NodeFacts:
    """Read the facts of a node as its agent, or a saved check of it, has them."""
    return decode_parts(NodeFacts, facts)


def has_failed(part: Json) -> bool:
    """Tell whether a part of the facts could not be collected."""
    return isinstance(part, dict) and "error" in part


def check_facts(facts: Mapping[str, Json]) -> None:
    """Raise DecodeError where a part that was collected cannot be read; each check judges its own part."""
    collected = {name: part for name, part in facts.items() if part is not None and not has_failed(part)}
    read = decode(NodeFacts, collected, "$.facts")
    for interface in read.interfaces:
        for address in interface.addresses:
            try:
                network_of(address)
            except ValueError:
                raise DecodeError("$.facts.interfaces: expected the address of a network") from None


# -- What a plan asks of the facts of a node ---------------------------------------------------------------------------


def gpu_count(facts: NodeFacts) -> int:
    """Count the GPUs of a node; 0 where that is not known."""
    if facts.gpus is None:
        return 0
    return facts.gpus.count_ or 0


def local_addresses(facts: NodeFacts) -> Iterator[Tuple[str, Address, InterfaceFacts]]:
    """Give all addresses, each with its name and interface, as glibc's getifaddrs does: all IPv4, then all IPv6."""
    for family in (4, 6):
        for interface in facts.interfaces:
            for address in interface.addresses:
                if address.family == family:
                    yield address.label or interface.name, address, interface


def global_addresses(facts: NodeFacts) -> list[str]:
    """Give those that are neither of the host alone nor of one link."""
    return [address.address for _, address, _ in local_addresses(facts) if address.scope == "global"]


def outer_addresses(facts: NodeFacts) -> list[str]:
    """Give those by which other nodes may know this one."""
    outer = (plain(own.address) for _, own, interface in local_addresses(facts) if not interface.loopback)
    return list(dict.fromkeys(outer))


def interface_of(facts: NodeFacts, address: str) -> str | None:
    """Name the interface that has an address."""
    wanted = plain(address)
    return next((name for name, own, _ in local_addresses(facts) if plain(own.address) == wanted), None)


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
        return text[7:] if text.startswith("::ffff:") else text
    return text


def read_probes(results: Json) -> tuple[AddressProbe, ...]:
    """Read what an agent, or a saved check of it, says of the addresses that it tried."""
    return tuple(decode_each(AddressProbe, results))
