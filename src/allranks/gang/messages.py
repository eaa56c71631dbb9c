"""What a node's messages must look like before the gang acts on them (pure).

A record has the fields that the gang or the plan reads; a message may have more. `check_…` raise DecodeError, and the
message then counts as one that cannot be read: no node's word is a crash of the controller.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

from allranks.protocol.codec import DecodeError, decode

Object = dict[str, object]


class ExitFields(NamedTuple):
    """How a rank ended."""

    rank: int
    attempt: int = 0
    code: int | None = None
    signal: int | None = None
    expected: bool | None = None
    oom_kills: int | None = None
    error: Object | None = None


class RankFields(NamedTuple):
    """A rank of an agent that was away."""

    pid: int
    exit: ExitFields | None = None


class Summary(NamedTuple):
    """The attempt of an agent that was away."""

    attempt: int
    ranks: dict[int, RankFields] | None = None
    ending: bool | None = None
    signals: int | None = None


class Owner(NamedTuple):
    """Who holds a port."""

    pid: int | None = None
    command: str | None = None
    user: str | None = None


class PortFailure(NamedTuple):
    """Why a port could not be opened (agent.gate.port_failure)."""

    port: int | None = None
    errno: str | None = None
    text: str | None = None
    owner: Owner | None = None


class Tried(NamedTuple):
    """What became of one offered address."""

    address: str
    ok: bool
    seconds: float | None = None
    local_address: str | None = None
    error: str | None = None
    text: str | None = None


class Address(NamedTuple):
    """An address of an interface."""

    address: str
    prefix: int
    family: int
    label: str | None = None
    scope: str | None = None


class Interface(NamedTuple):
    """An interface of a node."""

    name: str
    addresses: list[Address] | None = None


class Identity(NamedTuple):
    """Which machine a node is."""

    boot_id: str | None = None
    netns: int | None = None


class Nccl(NamedTuple):
    """Who speaks about NCCL's interfaces."""

    environ: dict[str, str] | None = None
    conf: Object | None = None
    plugins: list[object] | None = None


class OwnName(NamedTuple):
    """What a node's own name resolves to."""

    addresses: list[str] | None = None


class FactsFields(NamedTuple):
    """What the plan reads of the look at a node; a part that failed is an object with its error."""

    interfaces: Object | list[Interface] | None = None
    gpus: Object | None = None
    mem: Object | None = None
    identity: Identity | None = None
    nccl: Nccl | None = None
    own_name: OwnName | None = None
    interpreter: Object | None = None


def check_exit(value: object) -> None:
    """An `exit` message."""
    decode(ExitFields, value)


def check_summary(value: object) -> None:
    """The `attempt` of a hello; None where there was none."""
    if value is not None:
        decode(Summary, value, "$.attempt")


def check_port_failure(value: object) -> None:
    """The `error` of `listening`; None where there is none."""
    if value is not None:
        decode(PortFailure, value, "$.error")


def check_tried(value: object) -> None:
    """The `results` of `probed`."""
    decode(list[Tried], value, "$.results")


def check_left(value: object) -> None:
    """The processes that a node could not end."""
    decode(list[Object], value, "$.left")


def check_facts(facts: Mapping[str, object]) -> None:
    """The facts of a node, as far as the gang itself reads them; each check judges its own part."""
    read = decode(FactsFields, facts, "$.facts")
    decode(int, (read.gpus or {}).get("count") or 0, "$.facts.gpus.count")
    for interface in read.interfaces if isinstance(read.interfaces, list) else []:
        for address in interface.addresses or []:
            try:
                ipaddress.ip_interface(f"{address.address}/{address.prefix}")
            except ValueError:
                raise DecodeError("$.facts.interfaces: expected the address of a network") from None
