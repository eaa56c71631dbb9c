"""What a joined node lets a coordinator say: when, where and how many, never what runs (pure).

The coordinator's messages name a command, an interpreter, directories, addresses and an environment. A node that
joined by itself takes none of them: every message is made here, from this node's own arguments, from what it has
seen for itself, and from checked numbers and names. What is not known is refused, and ends this node.
docs/explanation/join.md lists what each message can still do.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from allranks.cluster import Node
from allranks.protocol.codec import DecodeError
from allranks.protocol.foreign import LARGEST_STEP
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import Json, JsonObject
from allranks.protocol.orders import (
    MOST_CALLS,
    ORDERS,
    SAVE_PHASES,
    AckOrder,
    CallTimesOrder,
    CountersOrder,
    EndOrder,
    HelloOrder,
    ListenOrder,
    Order,
    PeerAddress,
    PingOrder,
    PreloadOrder,
    ProbeOrder,
    ReachOrder,
    ReleaseOrder,
    SaveOrder,
    ServeOrder,
    SetupOrder,
    SignalOrder,
    StacksOrder,
    StartOrder,
    StartTerms,
    SuiteNodes,
    TakenOrder,
    UsageOrder,
)
from allranks.protocol.plan_facts import NodeFacts, read_facts
from allranks.settings import RunSpec

from .environment import NodeLaunch, Place
from .launchers.collectives import of_a_stage
from .network import MAX_OFFERS
from .node_facts import read_probes
from .peer_addresses import MAX_WAYS
from .plan import orders, preload_order, ranks_of
from .ranks import Attempt, NodePlan

Item = TypeVar("Item")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
RUN_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}/node_[0-9]{2,6}(_[0-9]{1,4})?")
HOST = re.compile(r"[A-Za-z0-9.:%_-]{1,255}")
TOKEN = re.compile(r"[A-Za-z0-9_/-]{8,128}")
REASON = re.compile(r"[A-Za-z0-9 _-]{0,64}")
STREAM = re.compile(r"[0-9]{1,3}/[0-9]{1,10}/[0-9]{1,5}")  # kind/rank/attempt: see protocol.frames.stream_key
INTERFACES = re.compile(r"[=^]?[A-Za-z0-9._,:-]{1,200}")
INTERFACE_NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
STACK_WORDS = ("", "look", "dump")
USER_SIGNALS = ("USR1", "USR2")
MOST_RANKS = 1 << 20
MOST_HERE = 4096  # ranks of one node
MOST_STREAMS = 1 << 17
MOST_REACHES = 16  # orders to try the peers in one run: a check gives one, the tests a few
MOST_LOOK_SECONDS = 3600.0
LEAST_USAGE_SECONDS = 1.0
DAY = 86400.0
UNPRIVILEGED = 1024
PROTOCOL = 1 << 16


class NotPinned(ValueError):
    """An order that a joined node does not carry out; the text says why."""


@dataclass(frozen=True)
class NodeArguments:
    """What this node was started with. `setup` asks for its facts as it asks itself."""

    spec: RunSpec
    setup: SetupOrder
    checks: tuple[str, ...]

    @property
    def is_for_training(self) -> bool:
        """Started with a command: neither to be checked nor to be tested."""
        return bool(self.spec.launch.command)


class Pin:
    """One node's orders, from its first contact to its end: what it may be asked next follows from what it has seen."""

    def __init__(self, arguments: NodeArguments, tag: str) -> None:
        """`tag` is in the name of every run that is begun here: so none of them is a run that another command began."""
        self._arguments = arguments
        self._tag = tag
        self._coordinator = ""
        self._here = ""
        self._begun: dict[str, str] = {}  # run tags of the agents begun here, by what the coordinator calls them
        self._node_dir = ""
        self._facts = NodeFacts()
        self._listens = 0  # the port that this node has opened as the first of a group
        self._proved: set[tuple[str, int]] = set()
        self._peers: dict[str, frozenset[str]] = {}
        self._reaches = 0

    # -- what this node has seen for itself ----------------------------------------------------------

    def connected(self, coordinator: str, here: str) -> None:
        """Take the addresses of both ends of the connection to the coordinator."""
        self._coordinator = coordinator
        self._here = here

    def heard(self, message: Mapping[str, Json]) -> None:
        """Remember what this node's own agent says."""
        kind = message.get("type")
        if kind == "hello":
            self._node_dir = str(message.get("node_dir") or "")
        elif kind == "facts":
            self._facts = read_facts(message.get("facts"))
        elif kind == "listening":
            port = message.get("port")
            self._listens = port if isinstance(port, int) else 0
        elif kind == "probed":
            self._proved.update((r.address, r.port) for r in read_probes(message.get("results")) if r.ok)

    # -- orders --------------------------------------------------------------------------------------

    def header(self, header: AgentHeader) -> AgentHeader:
        """Make the header of a relay with this node's own directory; raise NotPinned."""
        mode = header.mode
        run = _matching("uid", header.uid, NAME)
        node = _matching("node", header.node, NAME)
        run_tag = _matching("run_tag", header.run_tag, RUN_TAG)
        if run_tag != f"{run}/{node}":
            raise NotPinned(f"the run tag {run_tag[:60]!r} for {run}/{node}")
        if mode not in ("agent", "attach"):
            raise NotPinned(f"the relay's mode {mode[:40]!r}")
        if mode == "attach" and run_tag not in self._begun:
            raise NotPinned(f"to attach to {run_tag[:60]!r}, which was not begun here")
        earlier = [tag for theirs, tag in self._begun.items() if theirs != run_tag and theirs.startswith(f"{run}/")]
        self._begun[run_tag] = f"{self._run(run)}/{node}"
        return AgentHeader(
            mode=mode,
            uid=self._run(run),
            node=node,
            run_tag=self._begun[run_tag],
            ends=tuple(earlier),
            lease=_within("lease", header.lease, 1, DAY),
            grace=_within("grace", header.grace, 0, DAY),
            node_dir=self._arguments.spec.places.node_dir,
            checks=self._known_checks(header.checks),
            tests=bool(self._arguments.spec.tests.test),
            audit=bool(self._arguments.spec.recovery.audit_data),
        )

    def order(self, message: Mapping[str, Json]) -> JsonObject:
        """Make an order as this node's agent may have it; raise NotPinned."""
        try:
            order = ORDERS.read(dict(message))
        except DecodeError as error:
            raise NotPinned(f"an order that does not fit ({error})") from None
        return ORDERS.write(self._pinned(order))

    def _pinned(self, order: Order) -> Order:
        match order:
            case HelloOrder():
                return self._hello(order)
            case SetupOrder():
                return self._setup(order)
            case ListenOrder():
                return self._listen(order)
            case ProbeOrder():
                return self._probe(order)
            case ServeOrder():
                return self._serve(order)
            case ReachOrder():
                return self._reach(order)
            case StartOrder():
                return self._start(order)
            case PreloadOrder():
                return self._preload(order)
            case PingOrder():
                return PingOrder(_within("sent", order.sent, 0, float(1 << 53)))
            case TakenOrder():
                return TakenOrder(_whole("output", order.output, (1 << 63) - 1))
            case AckOrder():
                return AckOrder(_sizes("sizes", order.sizes))
            case StacksOrder():
                return _stacks(order)
            case CountersOrder():
                return CountersOrder(_ranks(order.ranks))
            case UsageOrder():
                return UsageOrder(_within("every", order.every, LEAST_USAGE_SECONDS, DAY))
            case CallTimesOrder():
                most = _whole("most", order.most, MOST_CALLS)
                return CallTimesOrder(_ranks(order.ranks), most, _ranks(order.suspects))
            case SignalOrder():
                return _signal(order)
            case SaveOrder():
                return _save(order)
            case EndOrder():
                grace = _within("grace", order.grace, 0, DAY)
                return EndOrder(grace, _matching("reason", order.reason, REASON), bool(order.note_calls))
            case ReleaseOrder():
                return order
            case _:
                raise NotPinned(f"a message of type {ORDERS.word(order)!r}")

    def _run(self, run: str) -> str:
        return f"{run}-{self._tag}"

    def _known_checks(self, names: Sequence[str]) -> tuple[str, ...]:
        """Pick those of the checks asked for that this node has."""
        return tuple(name for name in names if name in self._arguments.checks)

    def _hello(self, order: HelloOrder) -> HelloOrder:
        return HelloOrder(
            protocol=_whole("protocol", order.protocol, PROTOCOL),
            lease=_within("lease", order.lease, 1, DAY),
            have=_sizes("have", order.have),
        )

    def _setup(self, order: SetupOrder) -> SetupOrder:
        return self._arguments.setup._replace(
            uid=self._run(_matching("uid", order.uid, NAME)),
            checks=self._known_checks(order.checks),
            seconds=_within("seconds", order.seconds, 1, MOST_LOOK_SECONDS),
        )

    def _listen(self, order: ListenOrder) -> ListenOrder:
        """Open this node's own port: as the first node of a group of nodes that is tested, not of a run.

        Node 0 of a run is the coordinator itself.
        """
        if self._arguments.is_for_training:
            raise NotPinned("to open the master's port on a node that is not the first")
        port = self._arguments.spec.rendezvous.master_port
        return ListenOrder(port, _matching("token", order.token, TOKEN), self._arguments.spec.places.output_dir)

    def _probe(self, order: ProbeOrder) -> ProbeOrder:
        """Try the master alone: the address that this node dials, or an address of the network that it was given."""
        addresses = tuple(_host(address) for address in _at_most("addresses", order.addresses, MAX_OFFERS))
        port = self._port("port", order.port)
        if not self._arguments.is_for_training:
            for address in addresses:
                self._require_peer(address, loopback=port == self._listens)
        return ProbeOrder(
            addresses=addresses,
            port=port,
            token=_matching("token", order.token, TOKEN),
            seconds=_within("seconds", order.seconds, 0.1, MOST_LOOK_SECONDS),
            nonce_dir=self._arguments.spec.places.output_dir,
            only=self._masters() if self._arguments.is_for_training else None,
        )

    def _masters(self) -> tuple[str, ...]:
        """List the names, addresses and networks that the master's address must be of."""
        networks = [part for part in (self._arguments.spec.rendezvous.network or "").split(",") if part]
        return (*filter(None, (self._arguments.spec.rendezvous.master_addr, self._coordinator)), *networks)

    def _serve(self, order: ServeOrder) -> ServeOrder:
        if self._arguments.is_for_training:
            raise NotPinned("to serve peers on a node that was started to train")
        return ServeOrder(
            _matching("token", order.token, TOKEN), _within("seconds", order.seconds, 0.1, MOST_LOOK_SECONDS)
        )

    def _reach(self, order: ReachOrder) -> ReachOrder:
        """Reach the nodes of the gang: at addresses that stay what they were, at unprivileged ports."""
        if self._arguments.is_for_training:
            raise NotPinned("to reach peers on a node that was started to train")
        self._reaches += 1
        if self._reaches > MOST_REACHES:
            raise NotPinned(f"to reach peers more than {MOST_REACHES} times")
        if len(order.peers) >= self._nodes:
            raise NotPinned("more peers than the other nodes")
        return ReachOrder(
            token=_matching("token", order.token, TOKEN),
            sender=_whole("sender", order.sender, 65535),
            seconds=_within("seconds", order.seconds, 0.1, MOST_LOOK_SECONDS),
            names=tuple(_name(name) for name in _at_most("names", order.names, 4 * self._nodes)),
            peers={_name(name): self._peer(name, peer) for name, peer in order.peers.items()},
        )

    def _peer(self, name: str, peer: PeerAddress) -> PeerAddress:
        address = _host(peer.address)
        ways = tuple(_host(way) for way in _at_most("ways", peer.ways, MAX_WAYS))
        addresses = frozenset((address, *ways))
        for one in addresses:
            self._require_peer(one)
        if self._peers.setdefault(name, addresses) != addresses:
            raise NotPinned(f"other addresses of {name} than before")
        if len(self._peers) >= self._nodes:
            raise NotPinned("more peers than there are nodes")
        udp = self._port("udp", peer.udp) if peer.udp else None
        return PeerAddress(address, self._port("port", peer.port), ways, udp)

    @property
    def _nodes(self) -> int:
        return self._arguments.spec.target.nodes or 1

    def _port(self, key: str, port: int) -> int:
        """Refuse a port on which a service of a system may listen, unless it is this node's own --master-port."""
        _whole(key, port, 65535)
        if port < UNPRIVILEGED and port != (self._arguments.spec.rendezvous.master_port or -1):
            raise NotPinned(f"{key} {port}: a port below {UNPRIVILEGED}")
        return port

    def _require_peer(self, address: str, loopback: bool = False) -> None:
        """Refuse an address that no other node can have, but this one's where `loopback`; raise NotPinned."""
        if address == self._arguments.spec.rendezvous.master_addr:
            return
        ip = _address(address)
        if ip is None:
            raise NotPinned(f"the peer {address[:60]!r}, which is not an IP address")
        coordinator = _address(self._coordinator)
        same_machine = self._coordinator == self._here or (coordinator is not None and coordinator.is_loopback)
        if ip.is_loopback and not (same_machine or loopback):
            raise NotPinned(f"a loopback address of a peer ({ip})")
        if ip.is_link_local and not (coordinator is not None and coordinator.is_link_local):
            raise NotPinned(f"a link-local address of a peer ({ip})")
        if ip.is_multicast or ip.is_unspecified or (ip.is_reserved and ip.version == 4):
            raise NotPinned(f"{ip}, which no node can have")

    # -- ranks ---------------------------------------------------------------------------------------

    def _start(self, order: StartOrder) -> StartOrder:
        """Make the order to start from this node's own arguments."""
        terms = order.terms
        if terms is None:
            raise NotPinned("a start without terms")
        master = (_matching("master_addr", terms.master_addr, HOST), _whole("master_port", terms.master_port, 65535))
        if master not in self._proved:
            raise NotPinned(f"ranks that meet at {master[0]} port {master[1]}, which this node has not reached")
        return orders(self._launch(terms, master))

    def _preload(self, order: PreloadOrder) -> PreloadOrder:
        """Make the order to import from this node's own arguments: what a former run here has imported."""
        terms = order.terms
        if terms is None or terms.tests is not None:
            raise NotPinned("imports without terms")
        return preload_order(self._launch(terms, ("", 0)))

    def _launch(self, terms: StartTerms, master: tuple[str, int]) -> NodeLaunch:
        """Put together what ranks are started with here."""
        tested = self._tested(terms.tests)
        spec = self._spec_of(tested)
        node = self._node_plan(spec, terms)
        number = _whole("attempt", terms.attempt, 65535)
        attempt = Attempt(number, *master, _whole("repeats", terms.repeats, 65535), tested)
        place = Place(
            node_dir=self._node_dir,
            workdir=self._arguments.setup.workdir or "",
            output_dir=spec.places.output_dir or f"{self._node_dir}/outputs",
            outputs_here=False,
            run_tag=self._run_tag(terms.run_tag),
            run=_matching("run", terms.run, NAME),
            interfaces=_interfaces(terms.interfaces),
            torch=self._facts.interpreter.torch or "",
        )
        return NodeLaunch(spec, terms.world_size, node, place, attempt, self._facts)

    def _spec_of(self, tested: SuiteNodes | None) -> RunSpec:
        """Return this node's own settings for a program, or for tests, if it was started for that."""
        spec = self._arguments.spec
        if tested is None and not spec.launch.command:
            raise NotPinned("a training program on a node that was started to be looked at or tested")
        if tested is not None and not spec.tests.test:
            raise NotPinned("collective tests on a node that was not started to be tested")
        if tested is None:
            return spec
        spec = of_a_stage(spec) if spec.tests.suite == "staged" else spec
        return spec.changed(launcher="direct")

    def _tested(self, tests: SuiteNodes | None) -> SuiteNodes | None:
        """Check the names of nodes: which tests, of which size, stands in this node's own arguments."""
        if tests is None:
            return None
        nodes = tuple(_name(name) for name in _at_most("nodes", tests.nodes, self._nodes))
        if not all(set(pair) <= set(nodes) for pair in _at_most("dead", tests.dead, self._nodes**2)):
            raise NotPinned("dead pairs that are not pairs of the nodes tested")
        return SuiteNodes(nodes, tests.dead)

    def _node_plan(self, spec: RunSpec, terms: StartTerms) -> NodePlan:
        """Plan this node's ranks."""
        world = _whole("world_size", terms.world_size, MOST_RANKS)
        nproc = _whole("nproc", terms.nproc, MOST_HERE)
        index = _whole("index", terms.index_, MOST_RANKS)
        of = _whole("of", terms.of, MOST_RANKS)
        first = _whole("first_rank", terms.first_rank, MOST_RANKS)
        this = Node(index, "this", "this")
        wanted, why = ranks_of(spec, this, self._facts, of)
        if nproc != wanted:
            raise NotPinned(f"{nproc} ranks on a node that runs {wanted} ({why})")
        if first + nproc > world or index >= of or of > self._nodes:
            raise NotPinned(f"ranks {first} to {first + nproc - 1} of {world}, node {index} of {of}")
        own_index = self._arguments.spec.target.node_rank
        if terms.tests is None and (index, of) != (own_index, self._nodes):
            raise NotPinned(f"the place of node {index} of {of} on node {own_index} of {self._nodes}")
        return NodePlan(this, nproc, first, of, "the coordinator", index)

    def _run_tag(self, run_tag: str) -> str:
        _matching("run_tag", run_tag, RUN_TAG)
        if run_tag not in self._begun:
            raise NotPinned(f"the run tag {run_tag[:60]!r} of another run")
        return self._begun[run_tag]


# -- orders that carry numbers alone -----------------------------------------------------------------------


def _stacks(order: StacksOrder) -> StacksOrder:
    if order.ask not in STACK_WORDS:
        raise NotPinned(f"ask {order.ask[:40]!r}")
    return StacksOrder(_ranks(order.ranks), order.ask)


def _signal(order: SignalOrder) -> SignalOrder:
    if order.name not in USER_SIGNALS:
        raise NotPinned(f"the signal {order.name[:40]!r}")
    return SignalOrder(_whole("attempt", order.attempt, 65535), _whole("order", order.order, 1 << 53), order.name)


def _save(order: SaveOrder) -> SaveOrder:
    if order.phase not in SAVE_PHASES or abs(order.step) > LARGEST_STEP:
        raise NotPinned(f"to save at step {order.step} ({order.phase[:40]!r})")
    attempt = _whole("attempt", order.attempt, 65535)
    request = _whole("request", order.request, 1 << 53)
    return SaveOrder(attempt, request, order.phase, order.step, _ranks(order.ranks))


def _ranks(ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(_whole("rank", rank, MOST_RANKS) for rank in _at_most("ranks", ranks, MOST_HERE))


def _sizes(key: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Check bytes by stream."""
    if len(sizes) > MOST_STREAMS:
        raise NotPinned(f"{key} of {len(sizes)} streams")
    if not all(STREAM.fullmatch(stream) for stream in sizes):
        raise NotPinned(f"{key} of something that is not a stream")
    return {stream: _whole(stream, size, (1 << 63) - 1) for stream, size in sizes.items()}


# -- values ------------------------------------------------------------------------------------------------


def _interfaces(interfaces: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in interfaces.items():
        if name not in INTERFACE_NAMES or not INTERFACES.fullmatch(value):
            raise NotPinned(f"the setting {name[:40]!r} as an interface")
    return interfaces


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an IP address without its zone; an IPv4 one that is written as IPv6 counts as what it is."""
    try:
        ip = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


def _at_most(key: str, items: Sequence[Item], most: int) -> Sequence[Item]:
    if len(items) > most:
        raise NotPinned(f"{key} of {len(items)} items, {most} at most")
    return items


def _host(text: str) -> str:
    return _matching("address", text, HOST)


def _name(text: str) -> str:
    return _matching("name", text, NAME)


def _matching(key: str, text: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(text):
        raise NotPinned(f"{key} {text[:60]!r}")
    return text


def _whole(key: str, number: int | str, most: int) -> int:
    if isinstance(number, str) or not 0 <= number <= most:
        raise NotPinned(f"{key} {str(number)[:60]!r}")
    return number


def _within(key: str, number: float | None, least: float, most: float) -> float:
    if number is None or not least <= number <= most:
        raise NotPinned(f"{key} {str(number)[:60]!r}")
    return number
