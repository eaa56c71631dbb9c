"""Typed views of what is known of a node and of what was asked of the nodes: both are JSON objects.

The records of a node's parts are those of `allranks.protocol.facts`, which its agent writes. Each view is decoded once.
A part that is absent, that could not be collected ({"error": …}) or that has another form reads as its defaults, so a
check that looks at it has nothing to say.
"""

from __future__ import annotations

from functools import cached_property, partial
from types import MappingProxyType
from typing import Callable, Dict, Generic, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

from allranks.protocol import facts as parts
from allranks.protocol.codec import decode_each, decode_parts, omit_empty
from allranks.protocol.jsontext import Json
from allranks.protocol.messages import PeerResult, PortFailure
from allranks.protocol.plan_facts import NodeFacts, has_failed, read_probes
from allranks.protocol.records import NamedTuple

Kind = TypeVar("Kind")


class Clock(NamedTuple):
    """Seconds that the node's clock is ahead of the controller's, and the round trip of the measurement."""

    offset: float = 0.0
    delay: float = 0.0


class FactsPart(Generic[Kind]):
    """A part of a JSON object; None stands in the place of one that could not be collected."""

    def __init__(self, read: Callable[[Json], Kind], with_errors: bool = False) -> None:
        self.read = read
        self.with_errors = with_errors
        self.name = ""

    def __set_name__(self, owner: Type[Dict[str, Json]], name: str) -> None:
        self.name = name

    def __get__(self, document: Dict[str, Json], owner: Type[Dict[str, Json]]) -> Kind:
        value = document.get(self.name)
        part = self.read(None if has_failed(value) and not self.with_errors else value)
        document.__dict__[self.name] = part  # looked up before this: it is decoded once
        return part


def _record(kind: Type[Kind]) -> Callable[[Json], Kind]:
    """Read a record of which every field has a default."""
    return partial(decode_parts, kind)


def _each(kind: Type[Kind]) -> Callable[[Json], List[Kind]]:
    return partial(decode_each, kind)


class Facts(Dict[str, Json]):
    """What a node knows of itself (`allranks.agent.node_check`), and what the checks collected there, by their IDs."""

    workdir = FactsPart(_record(parts.DirectoryFacts))
    script = FactsPart(_record(parts.TargetFacts))
    interpreter = FactsPart(_record(parts.Interpreter), with_errors=True)
    gpus = FactsPart(_record(parts.Gpus))
    identity = FactsPart(_record(parts.Identity))
    nccl = FactsPart(_record(parts.NcclFacts))
    disk = FactsPart(_record(parts.DiskFacts))
    shm = FactsPart(_record(parts.SharedMemory))
    mem = FactsPart(_record(parts.Memory))
    clock = FactsPart(_record(Clock))
    logind = FactsPart(_record(parts.LoginFacts))
    own_name = FactsPart(_record(parts.OwnName), with_errors=True)
    interfaces = FactsPart(_each(parts.InterfaceFacts))  # those that have addresses
    data = FactsPart(_each(parts.PathFacts))  # every --data-path
    probes = FactsPart(read_probes)  # what became of the master's addresses when this node tried them

    @property
    def hostname(self) -> str:
        """The node's own host name; empty where it is not known."""
        return str(self.get("hostname") or "")

    @property
    def gpu_count(self) -> int:
        """GPUs that the ranks may use."""
        return self.gpus.count_ or 0

    @property
    def cpus(self) -> int:
        """CPUs that the ranks may use; 0 where that is not known."""
        value = self.get("cpu")
        return value if isinstance(value, int) else 0

    @cached_property
    def addresses(self) -> List[Tuple[parts.InterfaceFacts, parts.Address]]:
        """Every address with its interface."""
        return [(interface, address) for interface in self.interfaces for address in interface.addresses]

    @property
    def remarks(self) -> List[str]:
        """Commands of the prelude that failed without ending it."""
        prelude = self.get("prelude")
        return decode_each(str, prelude.get("remarks")) if isinstance(prelude, dict) else []

    @cached_property
    def pairs(self) -> Dict[str, PeerResult]:
        """What it found when it tried its peers, by peer."""
        pairs = self.get("pairs")
        if not isinstance(pairs, dict):
            return {}
        return {peer: decode_parts(PeerResult, one) for peer, one in pairs.items()}

    @cached_property
    def for_plan(self) -> NodeFacts:
        """The parts that the choice of addresses reads."""
        return NodeFacts(
            tuple(self.interfaces),
            self.gpus if self.has_read("gpus") else None,
            mem=self.mem,
            identity=self.identity,
            nccl=self.nccl,
            own_name=self.own_name,
            interpreter=self.interpreter,
        )

    def has_read(self, part: str) -> bool:
        """Tell whether a part was collected."""
        value = self.get(part)
        return value is not None and self.error(part) == ""

    def error(self, part: str) -> str:
        """Why a part could not be collected; empty where it could."""
        value = self.get(part)
        error = value.get("error") if isinstance(value, dict) else None
        if not isinstance(error, str):
            return ""
        return error


class Launching(NamedTuple):
    """What the command says of its launcher, see `allranks.plan.launchers.config_keys`."""

    name: str = ""
    options: Mapping[str, Optional[str]] = {}
    accelerate: Optional[str] = None
    deepspeed: Sequence[str] = ()
    holds: bool = False
    ranks_asked_for: Optional[int] = None


@omit_empty("error", "addresses")
class Proof(NamedTuple):
    """What the rendezvous check tried: the master, its port at these addresses, or why that could not be opened."""

    name: str = ""
    port: int = 0
    error: Union[PortFailure, str, None] = None
    addresses: Tuple[str, ...] = ()


class Asked(NamedTuple):
    """The fields of a request that checks read; `wrap` and the paths are empty where they are not set."""

    command: Sequence[str] = ()
    python: str = ""
    wrap: str = ""
    launcher: str = ""
    launching: Launching = Launching()
    gate: Optional[Proof] = None
    spec: Mapping[str, Json] = {}
    nproc: Optional[int] = None
    slots: Mapping[str, Optional[int]] = {}
    virtual: bool = False
    local: Sequence[str] = ()
    ssh: Mapping[str, str] = {}
    workdir: str = ""
    output_dir: str = ""
    runs_dir: str = ""
    node_dir: str = ""
    data_paths: Sequence[str] = ()
    master_port: Optional[int] = None
    expect_gpus: Optional[int] = None
    uid: str = ""
    target: str = ""

    def ranks_on(self, node: str) -> Optional[int]:
        """Ranks that --nproc, slots or the command's own options ask for; None where they follow the GPUs."""
        return self.nproc or self.slots.get(node) or self.launching.ranks_asked_for


class Request(Dict[str, Json]):
    """What was asked of the nodes, as a JSON object: see `judge.judge`."""

    def __init__(self, values: Mapping[str, Json] = MappingProxyType({})) -> None:
        super().__init__(values)
        self.asked = decode_parts(Asked, self)  # its typed fields

    @property
    def target(self) -> str:
        """How the user named the nodes, to be put into a command."""
        return self.asked.target or "--hosts HOSTS"
