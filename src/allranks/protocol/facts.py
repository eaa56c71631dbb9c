"""The facts of a node, as far as the gang and the plan read them (pure, Python 3.8).

Facts are an object by name: what `agent.facts` collects, and what each check
collects under its own name.
"""

import ipaddress
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

from .codec import DecodeError, decode, omit_none
from .jsontext import JsonObject


@omit_none
class Address(NamedTuple):
    """An address of an interface; `label` where it is another name than the interface's."""

    address: str
    prefix: int
    family: int
    scope: Optional[str] = None
    flags: Optional[Tuple[str, ...]] = None
    label: Optional[str] = None


class InterfaceFacts(NamedTuple):
    """An interface of a node."""

    name: str
    index_: int = 0
    up: Optional[bool] = None
    running: Optional[bool] = None
    loopback: Optional[bool] = None
    addresses: Optional[Tuple[Address, ...]] = None


class Identity(NamedTuple):
    """Which machine a node is: two with the same boot_id, netns and pidns are the same one."""

    boot_id: Optional[str] = None
    machine_id: Optional[str] = None
    netns: Optional[int] = None
    pidns: Optional[int] = None
    uid: Optional[int] = None
    user: Optional[str] = None


class NcclFacts(NamedTuple):
    """What speaks about NCCL's or Gloo's interfaces on the node; `conf` are files by path."""

    environ: Optional[Dict[str, str]] = None
    conf: Optional[JsonObject] = None
    plugins: Optional[Tuple[Any, ...]] = None
    rdma: Optional[Tuple[Any, ...]] = None


@omit_none
class OwnName(NamedTuple):
    """What a node's own name resolves to, or why to nothing."""

    addresses: Optional[Tuple[str, ...]] = None
    error: Optional[str] = None


class Gpus(NamedTuple):
    """The GPUs of a node: how many, where the count comes from, device numbers or UUIDs."""

    count_: Optional[int] = None
    source: Optional[str] = None
    vendor: Optional[str] = None
    list_: Optional[Tuple[Any, ...]] = None
    mig: Optional[bool] = None


class NodeFacts(NamedTuple):
    """What the plan reads of the facts; a part that failed is an object with its error."""

    interfaces: Union[JsonObject, Tuple[InterfaceFacts, ...], None] = None
    gpus: Optional[Gpus] = None
    mem: Optional[JsonObject] = None
    identity: Optional[Identity] = None
    nccl: Optional[NcclFacts] = None
    own_name: Optional[OwnName] = None
    interpreter: Optional[JsonObject] = None


def check_facts(facts: JsonObject) -> None:
    """Raise DecodeError where the plan could not read the facts; each check judges its own part."""
    read = decode(NodeFacts, facts, "$.facts")
    for interface in read.interfaces if isinstance(read.interfaces, tuple) else ():
        for address in interface.addresses or ():
            try:
                ipaddress.ip_network("%s/%d" % (address.address, address.prefix), strict=False)
            except ValueError:
                raise DecodeError("$.facts.interfaces: expected the address of a network") from None
