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
from typing import Any

from allranks.cluster import Node
from allranks.settings import RunSpec

from .environment import Launch, Place
from .facts import NodeFacts, read_facts
from .launchers.collectives import of_a_stage
from .network import MAX_OFFERS
from .plan import orders, ranks_of
from .ranks import Attempt, NodePlan, SuiteNodes
from .reach import MAX_WAYS

Message = dict[str, Any]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}/node_[0-9]{2,6}(_[0-9]{1,4})?")
HOST = re.compile(r"[A-Za-z0-9.:%_-]{1,255}")
TOKEN = re.compile(r"[A-Za-z0-9_/-]{8,128}")
REASON = re.compile(r"[A-Za-z0-9 _-]{0,64}")
STREAM = re.compile(r"[0-9]{1,3}/[0-9]{1,10}/[0-9]{1,5}")  # kind/rank/attempt: see node.outlet.stream_key
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
class Own:
    """What this node was started with. `setup` are the fields of a `setup` message that are its own."""

    spec: RunSpec
    setup: Mapping[str, Any]
    checks: tuple[str, ...]

    @property
    def is_for_training(self) -> bool:
        """Started with a command: neither to be checked nor to be tested."""
        return bool(self.spec.launch.command)


class Pin:
    """One node's orders, from its first contact to its end: what it may be asked next follows from what it has seen."""

    def __init__(self, own: Own, tag: str) -> None:
        """`tag` is in the name of every run that is begun here: so none of them is a run that another command began."""
        self._own = own
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
        self._makers: dict[str, Callable[[Mapping[str, Any]], Message]] = {
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
        """The addresses of both ends of the connection to the coordinator."""
        self._coordinator = coordinator
        self._here = here

    def heard(self, message: Mapping[str, Any]) -> None:
        """What this node's own agent says."""
        kind = message.get("type")
        if kind == "hello":
            self._node_dir = str(message.get("node_dir") or "")
        elif kind == "facts":
            self._facts = read_facts(message.get("facts"))
        elif kind == "listening":
            self._listens = int(message.get("port") or 0)
        elif kind == "probed":
            reached = [r for r in message.get("results") or () if r.get("ok")]
            self._proved.update((str(r.get("address")), int(r.get("port") or 0)) for r in reached)

    # -- orders --------------------------------------------------------------------------------------

    def header(self, header: Mapping[str, Any]) -> Message:
        """The header of a relay with this node's own directory; raises NotPinned."""
        mode = header.get("mode")
        run = _matching(header, "uid", NAME)
        node = _matching(header, "node", NAME)
        mark = _matching(header, "mark", MARK)
        if mark != f"{run}/{node}":
            raise NotPinned(f"the run tag {mark[:60]!r} for {run}/{node}")
        if mode not in ("agent", "attach"):
            raise NotPinned(f"the relay's mode {str(mode)[:40]!r}")
        if mode == "attach" and mark not in self._begun:
            raise NotPinned(f"to attach to {mark[:60]!r}, which was not begun here")
        earlier = [own for theirs, own in self._begun.items() if theirs != mark and theirs.startswith(f"{run}/")]
        self._begun[mark] = f"{self._run(run)}/{node}"
        return {
            "mode": mode,
            "uid": self._run(run),
            "node": node,
            "mark": self._begun[mark],
            "ends": earlier,
            "lease": _number(header, "lease", 1, DAY),
            "grace": _number(header, "grace", 0, DAY),
            "node_dir": self._own.spec.places.node_dir,
            "checks": self._known_checks(header),
            "tests": bool(self._own.spec.tests.test),
            "audit": bool(self._own.spec.recovery.audit_data),
        }

    def order(self, message: Mapping[str, Any]) -> Message:
        """A message as this node's agent may have it; raises NotPinned."""
        kind = message.get("type")
        maker = self._makers.get(kind) if isinstance(kind, str) else None
        if maker is None:
            raise NotPinned(f"a message of type {str(kind)[:40]!r}")
        return {"type": kind, **maker(message)}

    def _run(self, run: str) -> str:
        return f"{run}-{self._tag}"

    def _known_checks(self, found: Mapping[str, Any]) -> list[str]:
        """Those of the checks asked for that this node has."""
        return [name for name in _listed(found, "checks", 1024) if name in self._own.checks]

    def _hello(self, message: Mapping[str, Any]) -> Message:
        return {
            "protocol": _whole(message, "protocol", PROTOCOL),
            "lease": _number(message, "lease", 1, DAY),
            "have": _sizes(message, "have"),
        }

    def _setup(self, message: Mapping[str, Any]) -> Message:
        return {
            **self._own.setup,
            "master_port": self._own.spec.rendezvous.master_port,
            "uid": self._run(_matching(message, "uid", NAME)),
            "checks": self._known_checks(message),
            "seconds": _number(message, "seconds", 1, MOST_LOOK_SECONDS),
        }

    def _listen(self, message: Mapping[str, Any]) -> Message:
        """Node 0 of a run is the coordinator itself; a group of nodes that is tested may have another first node."""
        if self._own.is_for_training:
            raise NotPinned("to open the master's port on a node that is not the first")
        port = self._own.spec.rendezvous.master_port
        token = _matching(message, "token", TOKEN)
        return {"port": port, "token": token, "nonce_dir": self._own.spec.places.output_dir}

    def _probe(self, message: Mapping[str, Any]) -> Message:
        """To the master alone: the address that this node dials, or an address of the network that it was given."""
        addresses = [_host(word) for word in _listed(message, "addresses", MAX_OFFERS)]
        port = self._port(message, "port")
        made = {
            "addresses": addresses,
            "port": port,
            "token": _matching(message, "token", TOKEN),
            "seconds": _number(message, "seconds", 0.1, MOST_LOOK_SECONDS),
            "nonce_dir": self._own.spec.places.output_dir,
        }
        if self._own.is_for_training:
            return {**made, "only": self._masters()}
        for address in addresses:
            self._require_peer(address, loopback=port == self._listens)
        return made

    def _masters(self) -> list[str]:
        """Names, addresses and networks that the master's address must be of."""
        networks = [part for part in (self._own.spec.rendezvous.network or "").split(",") if part]
        return [*filter(None, (self._own.spec.rendezvous.master_addr, self._coordinator)), *networks]

    def _serve(self, message: Mapping[str, Any]) -> Message:
        if self._own.is_for_training:
            raise NotPinned("to serve peers on a node that was started to train")
        return {
            "token": _matching(message, "token", TOKEN),
            "seconds": _number(message, "seconds", 0.1, MOST_LOOK_SECONDS),
        }

    def _reach(self, message: Mapping[str, Any]) -> Message:
        """To nodes of the gang: as many as there are, at addresses that stay what they were, at unprivileged ports."""
        if self._own.is_for_training:
            raise NotPinned("to reach peers on a node that was started to train")
        self._reaches += 1
        if self._reaches > MOST_REACHES:
            raise NotPinned(f"to reach peers more than {MOST_REACHES} times")
        names = [_name(word) for word in _listed(message, "names", 4 * self._nodes)]
        peers = message.get("peers")
        if not isinstance(peers, Mapping) or len(peers) >= self._nodes:
            raise NotPinned("peers that are no table of the other nodes")
        return {
            "token": _matching(message, "token", TOKEN),
            "sender": _whole(message, "sender", 65535),
            "seconds": _number(message, "seconds", 0.1, MOST_LOOK_SECONDS),
            "names": names,
            "peers": {_name(name): self._peer(_name(name), peer) for name, peer in peers.items()},
        }

    def _peer(self, name: str, peer: Any) -> Message:
        if not isinstance(peer, Mapping):
            raise NotPinned("a peer that is no table")
        address = _host(peer.get("address"))
        ways = [_host(word) for word in _listed(peer, "ways", MAX_WAYS)]
        found = frozenset((address, *ways))
        for one in found:
            self._require_peer(one)
        if self._peers.setdefault(name, found) != found:
            raise NotPinned(f"other addresses of {name} than before")
        if len(self._peers) >= self._nodes:
            raise NotPinned("more peers than there are nodes")
        made = {"address": address, "ways": ways, "port": self._port(peer, "port")}
        return {**made, "udp": self._port(peer, "udp")} if peer.get("udp") else made

    @property
    def _nodes(self) -> int:
        return self._own.spec.target.nodes or 1

    def _port(self, found: Mapping[str, Any], key: str) -> int:
        """A port that no service of a system listens on, unless it is this node's own --master-port."""
        port = _whole(found, key, 65535)
        if port < UNPRIVILEGED and port != (self._own.spec.rendezvous.master_port or -1):
            raise NotPinned(f"{key} {port}: a port below {UNPRIVILEGED}")
        return port

    def _require_peer(self, address: str, loopback: bool = False) -> None:
        """An address that another node can have, or this one's `loopback`; raises NotPinned."""
        if address == self._own.spec.rendezvous.master_addr:
            return
        found = _address(address)
        if found is None:
            raise NotPinned(f"the peer {address[:60]!r}, which is no IP address")
        coordinator = _address(self._coordinator)
        same_machine = self._coordinator == self._here or (coordinator is not None and coordinator.is_loopback)
        if found.is_loopback and not (same_machine or loopback):
            raise NotPinned(f"a loopback address of a peer ({found})")
        if found.is_link_local and not (coordinator is not None and coordinator.is_link_local):
            raise NotPinned(f"a link-local address of a peer ({found})")
        if found.is_multicast or found.is_unspecified or (found.is_reserved and found.version == 4):
            raise NotPinned(f"{found}, which no node can have")

    # -- ranks ---------------------------------------------------------------------------------------

    def _start(self, message: Mapping[str, Any]) -> Message:
        """The start message from this node's own arguments."""
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
            workdir=str(self._own.setup["workdir"]),
            output_dir=spec.places.output_dir or f"{self._node_dir}/outputs",
            outputs_here=False,
            mark=self._mark(terms),
            run=_matching(terms, "run", NAME),
            interfaces=_interfaces(terms.get("interfaces") or {}),
            torch=self._facts.torch,
        )
        return orders(Launch(spec, world_size, node, place, attempt, self._facts))

    def _spec_of(self, tested: SuiteNodes | None) -> RunSpec:
        """This node's own settings for a program, or for tests, if it was started for that."""
        spec = self._own.spec
        if tested is None and not spec.launch.command:
            raise NotPinned("a training program on a node that was started to be looked at or tested")
        if tested is not None and not spec.tests.test:
            raise NotPinned("collective tests on a node that was not started to be tested")
        if tested is None:
            return spec
        spec = of_a_stage(spec) if spec.tests.suite == "staged" else spec
        return spec.changed(launcher="direct")

    def _tested(self, terms: Mapping[str, Any]) -> SuiteNodes | None:
        """Names of nodes alone: which tests, of which size, stands in this node's own arguments."""
        found = terms.get("tests")
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise NotPinned(f"tests {str(found)[:60]!r}")
        nodes = tuple(_name(word) for word in _listed(found, "nodes", self._nodes))
        pairs = [_listed({"pair": pair}, "pair", 2) for pair in _listed(found, "dead", self._nodes**2)]
        if any(len(pair) != 2 or not set(map(str, pair)) <= set(nodes) for pair in pairs):
            raise NotPinned("dead pairs that are no pairs of the nodes tested")
        return SuiteNodes(nodes, tuple((str(a), str(b)) for a, b in pairs))

    def _node_plan(self, spec: RunSpec, terms: Mapping[str, Any], world: int, is_test: bool) -> NodePlan:
        """This node's ranks."""
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
        if not is_test and (index, of) != (self._own.spec.target.node_rank, self._nodes):
            raise NotPinned(
                f"the place of node {index} of {of} on node {self._own.spec.target.node_rank} of {self._nodes}"
            )
        return NodePlan(this, nproc, first, of, "the coordinator", index)

    def _mark(self, terms: Mapping[str, Any]) -> str:
        mark = _matching(terms, "mark", MARK)
        if mark not in self._begun:
            raise NotPinned(f"the run tag {mark[:60]!r} of another run")
        return self._begun[mark]


# -- messages that carry numbers alone ---------------------------------------------------------------------


def _ping(message: Mapping[str, Any]) -> Message:
    return {"sent": _number(message, "sent", 0, float(1 << 53))}


def _ack(message: Mapping[str, Any]) -> Message:
    return {"sizes": _sizes(message, "sizes")}


def _stacks(message: Mapping[str, Any]) -> Message:
    word = message.get("ask") or ""
    if word not in STACK_WORDS:
        raise NotPinned(f"ask {str(word)[:40]!r}")
    return {"ranks": _ranks(message), "ask": word}


def _counters(message: Mapping[str, Any]) -> Message:
    return {"ranks": _ranks(message)}


def _signal(message: Mapping[str, Any]) -> Message:
    name = message.get("name")
    if name not in USER_SIGNALS:
        raise NotPinned(f"the signal {str(name)[:40]!r}")
    return {"attempt": _whole(message, "attempt", 65535), "order": _whole(message, "order", 1 << 53), "name": name}


def _end(message: Mapping[str, Any]) -> Message:
    return {"grace": _number(message, "grace", 0, DAY), "reason": _matching(message, "reason", REASON)}


def _release(message: Mapping[str, Any]) -> Message:
    return {}


def _ranks(message: Mapping[str, Any]) -> list[int]:
    return [_whole({"rank": rank}, "rank", MOST_RANKS) for rank in _listed(message, "ranks", MOST_HERE)]


def _sizes(message: Mapping[str, Any], key: str) -> dict[str, int]:
    """Bytes by stream."""
    found = message.get(key)
    if not isinstance(found, Mapping) or len(found) > MOST_STREAMS:
        raise NotPinned(f"{key} that is no table of sizes")
    if not all(isinstance(stream, str) and STREAM.fullmatch(stream) for stream in found):
        raise NotPinned(f"{key} of something that is no stream")
    return {stream: _whole(found, stream, (1 << 63) - 1) for stream in found}


# -- values ------------------------------------------------------------------------------------------------


def _interfaces(found: Any) -> dict[str, str]:
    if not isinstance(found, Mapping):
        raise NotPinned("interfaces that are no table")
    for name, value in found.items():
        if name not in INTERFACE_NAMES or not isinstance(value, str) or not INTERFACES.fullmatch(value):
            raise NotPinned(f"the setting {str(name)[:40]!r} as an interface")
    return dict(found)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An IP address without its zone; an IPv4 one that is written as IPv6 counts as what it is."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _listed(found: Mapping[str, Any], key: str, most: int) -> list[Any]:
    value = found.get(key)
    if not isinstance(value, (list, tuple, type(None))) or len(value or ()) > most:
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return list(value or ())


def _host(value: Any) -> str:
    return _matching({"address": value}, "address", HOST)


def _name(value: Any) -> str:
    return _matching({"name": value}, "name", NAME)


def _matching(found: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return value


def _whole(found: Mapping[str, Any], key: str, most: int) -> int:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return value


def _number(found: Mapping[str, Any], key: str, least: float, most: float) -> float:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise NotPinned(f"{key} {str(value)[:60]!r}")
    return float(value)
