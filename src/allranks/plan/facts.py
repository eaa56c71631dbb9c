"""What a plan reads of the facts of a node (pure). Each check judges its own part of them; those are not here."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from allranks.protocol.codec import decode_each, decode_parts

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Address:
    """An address of an interface; `label` is its name where that differs from the interface's (eth0:1)."""

    address: str
    prefix: int = 32
    family: int = 4
    scope: str | None = None
    label: str | None = None
    flags: tuple[str, ...] | None = None

    @property
    def network(self) -> Network:
        """The network that it lies in."""
        return ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False)

    @property
    def plain(self) -> str:
        """Without zone, as `plain` has it."""
        return plain(self.address)


@dataclass(frozen=True)
class Interface:
    """A network interface of a node."""

    name: str
    up: bool = False
    running: bool = False
    loopback: bool = False
    addresses: tuple[Address, ...] | None = None


class LocalAddress(NamedTuple):
    """An entry of getifaddrs(3)."""

    name: str
    address: Address
    interface: Interface


@dataclass(frozen=True)
class Identity:
    """Which machine and network namespace a node is in."""

    boot_id: str | None = None
    netns: int | None = None


@dataclass(frozen=True)
class OwnName:
    """What a node's host name resolves to."""

    addresses: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Gpus:
    """How many GPUs a node has, and what says so."""

    count: int | None = None
    source: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes of a node's memory."""

    total: int | None = None


@dataclass(frozen=True)
class Interpreter:
    """The training interpreter and its torch."""

    path: str | None = None
    torch: str | None = None


@dataclass(frozen=True)
class NcclFacts:
    """What may speak about NCCL's interfaces: variables, files by path, plug-ins."""

    environ_: Mapping[str, str] | None = None
    conf: Mapping[str, str] | None = None
    plugins: tuple[str, ...] | None = None


@dataclass(frozen=True)
class AccelerateConfig:
    """What the configuration that accelerate will read says of its processes, as the check of that name has it."""

    distributed_type: str | None = None
    use_cpu: str | bool | None = None
    error: str | None = None


@dataclass(frozen=True)
class NodeFacts:
    """One node. A part that is absent, or that failed there, is as its default."""

    interfaces: tuple[Interface, ...] = ()
    identity: Identity = Identity()
    own_name: OwnName = OwnName()
    gpus: Gpus | None = None
    mem: Memory = Memory()
    interpreter: Interpreter = Interpreter()
    nccl: NcclFacts = NcclFacts()
    accelerate_config: AccelerateConfig | None = None

    @property
    def gpu_count(self) -> int:
        """0 where it is not known."""
        return (self.gpus.count or 0) if self.gpus is not None else 0

    @property
    def torch(self) -> str:
        """The version of torch; empty where it is not known."""
        return self.interpreter.torch or ""

    @property
    def variables(self) -> Mapping[str, str]:
        """NCCL's and Gloo's variables in the environment of the ranks."""
        return self.nccl.environ_ or {}

    def local_addresses(self) -> Iterator[LocalAddress]:
        """In the order of glibc's getifaddrs: all IPv4, then all IPv6."""
        for family in (4, 6):
            for interface in self.interfaces:
                for address in interface.addresses or ():
                    if address.family == family:
                        yield LocalAddress(address.label or interface.name, address, interface)

    def global_addresses(self) -> list[str]:
        """Those that are neither of the host alone nor of one link."""
        return [local.address.address for local in self.local_addresses() if local.address.scope == "global"]

    def outer_addresses(self) -> list[str]:
        """Those by which other nodes may know this one."""
        outer = [local.address.plain for local in self.local_addresses() if not local.interface.loopback]
        return list(dict.fromkeys(outer))

    def interface_of(self, address: str) -> str | None:
        """The name of the interface that has an address."""
        wanted = plain(address)
        for local in self.local_addresses():
            if local.address.plain == wanted:
                return local.name
        return None

    def on_link(self, address: str) -> str | None:
        """The interface whose subnet holds an address; None where there is none."""
        wanted = ipaddress.ip_address(plain(address))
        for name, local, interface in self.local_addresses():
            if interface.up and not interface.loopback and wanted in local.network:
                return name
        return None


def read_facts(facts: object) -> NodeFacts:
    """Read the facts of a node as its agent, or a saved look at it, has them."""
    return decode_parts(NodeFacts, facts)


def plain(address: str) -> str:
    """Without a zone, and without the prefix of an IPv4 address mapped into IPv6."""
    text = address.partition("%")[0].lower()
    return text[7:] if text.startswith("::ffff:") and "." in text else text


@dataclass(frozen=True)
class AddressProbe:
    """What became of one address that a node tried: `error` is one word, `text` the system's; `ip`: what it was."""

    address: str
    ok: bool = False
    port: int = 0
    seconds: float | None = None
    local_address: str | None = None
    error: str | None = None
    text: str | None = None
    ip: str | None = None


def read_probes(results: object) -> tuple[AddressProbe, ...]:
    """Read what an agent, or a saved look at it, says of the addresses that it tried."""
    return tuple(decode_each(AddressProbe, results))
