"""What a joined node lets a coordinator say: when, where and how many, never what runs (pure).

The coordinator's messages name a command, an interpreter, directories, addresses and an environment. A node that
joined by itself takes none of them: every message is made anew, from this node's own arguments, from what it has
seen for itself, and from checked numbers and names. What is not known is refused, and ends this node.
docs/join.md lists what each message can still do.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from allranks.cluster import Node
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import Json
from allranks.protocol.orders import ORDERS
from allranks.protocol.plan_facts import NodeFacts, read_facts
from allranks.settings import RunSpec

from .environment import NodeLaunch, Place
from .launchers.collectives import of_a_stage
from .network import MAX_OFFERS
from .node_facts import read_probes
from .peer_addresses import MAX_WAYS
from .plan import orders, ranks_of
from .ranks import Attempt, NodePlan, SuiteNodes

Order = Mapping[str, Json]  # what came over the wire: nothing in it is known yet
Message = dict[str, Json]
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
DAY = 86400.0
UNPRIVILEGED = 1024
PROTOCOL = 1 << 16


class NotPinned(ValueError):
    """An order that a joined node does not carry out; the text says why."""


@dataclass(frozen=True)
class NodeArguments:
    """What this node was started with. `setup` are the fields of a `setup` message that are its own."""

    spec: RunSpec
    setup: Mapping[str, Json]
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
        self._makers: dict[str, Callable[[Order], Message]] = {
            "hello": self._hello,
            "ping": _ping,
            "ack": _ack,
            "setup": self._setup,
            "listen": self._listen,
            "probe": self._probe,
            "serve": self._serve,
            "reach": self._reach,
            "start": self._start,
            "stacks": _stacks,
            "counters": _counters,
            "signal": _signal,
            "end": _end,
            "release": _release,
        }

    # -- what this node has seen for itself ----------------------------------------------------------

    def connected(self, coordinator: str, here: str) -> None:
        """Take the addresses of both ends of the connection to the coordinator."""
        self._coordinator = coordinator
        self._here = here

    def heard(self, message: Order) -> None:
        """Remember what this node's own agent says."""
        kind = message.get("type")
        if kind == "hello":
            self._node_dir = str(message.get("node_dir") or "")
        elif kind == "facts":
            self._facts = read_facts(message.get("facts"))
        elif kind == "listening":
            self._listens = _whole(message, "port", 65535) if message.get("port") else 0
        elif kind == "probed":
            self._proved.update((r.address, r.port) for r in read_probes(message.get("results")) if r.ok)

    # -- orders --------------------------------------------------------------------------------------

    def header(self, header: AgentHeader) -> AgentHeader:
        """Make the header of a relay with this node's own directory; raise NotPinned."""
        order = header._asdict()
        mode = header.mode
        run = _matching(order, "uid", NAME)
        node = _matching(order, "node", NAME)
        run_tag = _matching(order, "run_tag", RUN_TAG)
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
            lease=_number(order, "lease", 1, DAY),
            grace=_number(order, "grace", 0, DAY),
            node_dir=self._arguments.spec.places.node_dir,
            checks=tuple(self._known_checks(order)),
            tests=bool(self._arguments.spec.tests.test),
            audit=bool(self._arguments.spec.recovery.audit_data),
        )

    def order(self, message: Order) -> Message:
        """Make an order as this node's agent may have it; raise NotPinned."""
        kind = message.get("type")
        maker = self._makers.get(kind) if isinstance(kind, str) else None
        if maker is None:
            raise NotPinned(f"a message of type {str(kind)[:40]!r}")
        return {"type": kind, **maker(message)}

    def _run(self, run: str) -> str:
        return f"{run}-{self._tag}"

    def _known_checks(self, order: Order) -> list[str]:
        """Those of the checks asked for that this node has."""
        return [name for name in _listed(order, "checks", 1024) if name in self._arguments.checks]

    def _hello(self, message: Order) -> Message:
        return {
            "protocol": _whole(message, "protocol", PROTOCOL),
            "lease": _number(message, "lease", 1, DAY),
            "have": _sizes(message, "have"),
        }

    def _setup(self, message: Order) -> Message:
        return {
            **self._arguments.setup,
            "master_port": self._arguments.spec.rendezvous.master_port,
            "uid": self._run(_matching(message, "uid", NAME)),
            "checks": self._known_checks(message),
            "seconds": _number(message, "seconds", 1, MOST_LOOK_SECONDS),
        }

    def _listen(self, message: Order) -> Message:
        """Node 0 of a run is the coordinator itself; a group of nodes that is tested may have another first node."""
        if self._arguments.is_for_training:
            raise NotPinned("to open the master's port on a node that is not the first")
        port = self._arguments.spec.rendezvous.master_port
        token = _matching(message, "token", TOKEN)
        return {"port": port, "token": token, "nonce_dir": self._arguments.spec.places.output_dir}

    def _probe(self, message: Order) -> Message:
        """To the master alone: the address that this node dials, or an address of the network that it was given."""
        addresses = [_host(word) for word in _listed(message, "addresses", MAX_OFFERS)]
        port = self._port(message, "port")
        made: Message = {
            "addresses": addresses,
            "port": port,
            "token": _matching(message, "token", TOKEN),
            "seconds": _number(message, "seconds", 0.1, MOST_LOOK_SECONDS),
            "nonce_dir": self._arguments.spec.places.output_dir,
        }
        if self._arguments.is_for_training:
            return {**made, "only": self._masters()}
        for address in addresses:
            self._require_peer(address, loopback=port == self._listens)
        return made

    def _masters(self) -> list[str]:
        """Names, addresses and networks that the master's address must be of."""
        networks = [part for part in (self._arguments.spec.rendezvous.network or "").split(",") if part]
        return [*filter(None, (self._arguments.spec.rendezvous.master_addr, self._coordinator)), *networks]

    def _serve(self, message: Order) -> Message:
        if self._arguments.is_for_training:
            raise NotPinned("to serve peers on a node that was started to train")
        return {
            "token": _matching(message, "token", TOKEN),
            "seconds": _number(message, "seconds", 0.1, MOST_LOOK_SECONDS),
        }

    def _reach(self, message: Order) -> Message:
        """To nodes of the gang: as many as there are, at addresses that stay what they were, at unprivileged ports."""
        if self._arguments.is_for_training:
            raise NotPinned("to reach peers on a node that was started to train")
        self._reaches += 1
        if self._reaches > MOST_REACHES:
            raise NotPinned(f"to reach peers more than {MOST_REACHES} times")
        names = [_name(word) for word in _listed(message, "names", 4 * self._nodes)]
        peers = message.get("peers")
        if not isinstance(peers, Mapping) or len(peers) >= self._nodes:
            raise NotPinned("peers that are not a table of the other nodes")
        return {
            "token": _matching(message, "token", TOKEN),
            "sender": _whole(message, "sender", 65535),
            "seconds": _number(message, "seconds", 0.1, MOST_LOOK_SECONDS),
            "names": names,
            "peers": {_name(name): self._peer(_name(name), peer) for name, peer in peers.items()},
        }

    def _peer(self, name: str, peer: Json) -> Message:
        if not isinstance(peer, Mapping):
            raise NotPinned("a peer that is not a table")
        address = _host(peer.get("address"))
        ways = [_host(word) for word in _listed(peer, "ways", MAX_WAYS)]
        addresses = frozenset((address, *ways))
        for one in addresses:
            self._require_peer(one)
        if self._peers.setdefault(name, addresses) != addresses:
            raise NotPinned(f"other addresses of {name} than before")
        if len(self._peers) >= self._nodes:
            raise NotPinned("more peers than there are nodes")
        made: Message = {"address": address, "ways": ways, "port": self._port(peer, "port")}
        return {**made, "udp": self._port(peer, "udp")} if peer.get("udp") else made

    @property
    def _nodes(self) -> int:
        return self._arguments.spec.target.nodes or 1

    def _port(self, order: Order, key: str) -> int:
        """Refuse a port on which a service of a system may listen, unless it is this node's own --master-port."""
        port = _whole(order, key, 65535)
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

    def _start(self, message: Order) -> Message:
        """Make the order to start from this node's own arguments."""
        terms = message.get("terms")
        if not isinstance(terms, Mapping):
            raise NotPinned("a start without terms")
        tested = self._tested(terms)
        spec = self._spec_of(tested)
        world_size = _whole(terms, "world_size", MOST_RANKS)
        node = self._node_plan(spec, terms, world_size, tested is not None)
        master = (_matching(terms, "master_addr", HOST), _whole(terms, "master_port", 65535))
        if master not in self._proved:
            raise NotPinned(f"ranks that meet at {master[0]} port {master[1]}, which this node has not reached")
        number = _whole(terms, "attempt", 65535)
        repeats = _whole(terms, "repeats", 65535)
        attempt = Attempt(number, *master, repeats, tested)
        place = Place(
            node_dir=self._node_dir,
            workdir=str(self._arguments.setup["workdir"]),
            output_dir=spec.places.output_dir or f"{self._node_dir}/outputs",
            outputs_here=False,
            run_tag=self._run_tag(terms),
            run=_matching(terms, "run", NAME),
            interfaces=_interfaces(terms.get("interfaces") or {}),
            torch=self._facts.interpreter.torch or "",
        )
        return ORDERS.write(orders(NodeLaunch(spec, world_size, node, place, attempt, self._facts)))

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

    def _tested(self, terms: Order) -> SuiteNodes | None:
        """Names of nodes alone: which tests, of which size, stands in this node's own arguments."""
        tests = terms.get("tests")
        if tests is None:
            return None
        if not isinstance(tests, Mapping):
            raise NotPinned(f"tests {str(tests)[:60]!r}")
        nodes = tuple(_name(word) for word in _listed(tests, "nodes", self._nodes))
        pairs = [_listed({"pair": pair}, "pair", 2) for pair in _listed(tests, "dead", self._nodes**2)]
        if any(len(pair) != 2 or not set(map(str, pair)) <= set(nodes) for pair in pairs):
            raise NotPinned("dead pairs that are not pairs of the nodes tested")
        return SuiteNodes(nodes, tuple((str(a), str(b)) for a, b in pairs))

    def _node_plan(self, spec: RunSpec, terms: Order, world: int, is_test: bool) -> NodePlan:
        """Plan this node's ranks."""
        nproc = _whole(terms, "nproc", MOST_HERE)
        index = _whole(terms, "index", MOST_RANKS)
        of = _whole(terms, "of", MOST_RANKS)
        first = _whole(terms, "first_rank", MOST_RANKS)
        this = Node(index, "this", "this")
        wanted, why = ranks_of(spec, this, self._facts)
        if nproc != wanted:
            raise NotPinned(f"{nproc} ranks on a node that runs {wanted} ({why})")
        if first + nproc > world or index >= of or of > self._nodes:
            raise NotPinned(f"ranks {first} to {first + nproc - 1} of {world}, node {index} of {of}")
        if not is_test and (index, of) != (self._arguments.spec.target.node_rank, self._nodes):
            raise NotPinned(
                f"the place of node {index} of {of} on node {self._arguments.spec.target.node_rank} of {self._nodes}"
            )
        return NodePlan(this, nproc, first, of, "the coordinator", index)

    def _run_tag(self, terms: Order) -> str:
        run_tag = _matching(terms, "run_tag", RUN_TAG)
        if run_tag not in self._begun:
            raise NotPinned(f"the run tag {run_tag[:60]!r} of another run")
        return self._begun[run_tag]


# -- messages that carry numbers alone ---------------------------------------------------------------------


def _ping(message: Order) -> Message:
    return {"sent": _number(message, "sent", 0, float(1 << 53))}


def _ack(message: Order) -> Message:
    return {"sizes": _sizes(message, "sizes")}


def _stacks(message: Order) -> Message:
    word = message.get("ask") or ""
    if word not in STACK_WORDS:
        raise NotPinned(f"ask {str(word)[:40]!r}")
    return {"ranks": _ranks(message), "ask": word}


def _counters(message: Order) -> Message:
    return {"ranks": _ranks(message)}


def _signal(message: Order) -> Message:
    name = message.get("name")
    if name not in USER_SIGNALS:
        raise NotPinned(f"the signal {str(name)[:40]!r}")
    return {"attempt": _whole(message, "attempt", 65535), "order": _whole(message, "order", 1 << 53), "name": name}


def _end(message: Order) -> Message:
    return {"grace": _number(message, "grace", 0, DAY), "reason": _matching(message, "reason", REASON)}


def _release(message: Order) -> Message:
    return {}


def _ranks(message: Order) -> list[int]:
    return [_whole({"rank": rank}, "rank", MOST_RANKS) for rank in _listed(message, "ranks", MOST_HERE)]


def _sizes(message: Order, key: str) -> dict[str, int]:
    """Bytes by stream."""
    sizes = message.get(key)
    if not isinstance(sizes, Mapping) or len(sizes) > MOST_STREAMS:
        raise NotPinned(f"{key} that is not a table of sizes")
    if not all(isinstance(stream, str) and STREAM.fullmatch(stream) for stream in sizes):
        raise NotPinned(f"{key} of something that is not a stream")
    return {stream: _whole(sizes, stream, (1 << 63) - 1) for stream in sizes}


# -- values ------------------------------------------------------------------------------------------------


def _interfaces(interfaces: Json) -> dict[str, str]:
    if not isinstance(interfaces, Mapping):
        raise NotPinned("interfaces that are not a table")
    checked: dict[str, str] = {}
    for name, value in interfaces.items():
        if name not in INTERFACE_NAMES or not isinstance(value, str) or not INTERFACES.fullmatch(value):
            raise NotPinned(f"the setting {str(name)[:40]!r} as an interface")
        checked[name] = value
    return checked


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an IP address without its zone; an IPv4 one that is written as IPv6 counts as what it is."""
    try:
        ip = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


def _listed(order: Order, key: str, most: int) -> list[Json]:
    value = order.get(key)
    if not isinstance(value, (list, tuple, type(None))) or len(value or ()) > most:
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return list(value or ())


def _host(value: Json) -> str:
    return _matching({"address": value}, "address", HOST)


def _name(value: Json) -> str:
    return _matching({"name": value}, "name", NAME)


def _matching(order: Order, key: str, pattern: re.Pattern[str]) -> str:
    value = order.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return value


def _whole(order: Order, key: str, most: int) -> int:
    value = order.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return value


def _number(order: Order, key: str, least: float, most: float) -> float:
    value = order.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return float(value)
