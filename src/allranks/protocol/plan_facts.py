"""The facts of a node as the gang, the plan and the checks read them; no agent needs this to start (pure, Python 3.8).

`NodeFacts` has the parts that a plan reads: each is as its default where it is absent or failed.
"""

from __future__ import annotations

import ipaddress
from typing import Mapping, Optional, Tuple, Union

from .codec import DecodeError, decode, decode_parts
from .facts import Address, Gpus, Identity, InterfaceFacts, Interpreter, Memory, NcclFacts, OwnName
from .jsontext import Json
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
