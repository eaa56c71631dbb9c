"""`allranks check` on the nodes: facts, the proof of the master's port, every pair; no ranks (IO, no judgement).

The same agents and channels as a run's. Each step asks all nodes at once and waits for the slowest.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from allranks.cluster import Cluster, Node
from allranks.cluster.names import is_address
from allranks.findings import Finding
from allranks.plan.network import offered
from allranks.plan.node_facts import read_probes
from allranks.plan.peer_addresses import main_addresses, other_ways
from allranks.preflight.peer_pairs import peers_of
from allranks.preflight.typed_facts import Proof
from allranks.protocol.codec import encode
from allranks.protocol.frames import Frame, OutputFrame
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import DecodeError, JsonObject
from allranks.protocol.messages import (
    FactsMessage,
    FaultMessage,
    HelloMessage,
    ListeningMessage,
    Message,
    PongMessage,
    ProbedMessage,
    ReachedMessage,
    ServingMessage,
    read_message,
)
from allranks.protocol.orders import HelloOrder, Order, PeerAddress, PingOrder, ReachOrder, ReleaseOrder, ServeOrder
from allranks.protocol.plan_facts import NodeFacts, read_facts
from allranks.settings import RunSpec

from .channel import AwaitedMessages, Channel, ChannelFailed
from .clocks import NodeClock
from .places import Setting, collectors, listen_order, node_label, probe_order, run_tag, setup_order
from .tasks import run_with_callbacks, start_task
from .transport import Transport

OPENING_AT_ONCE = 64
ANSWER_SECONDS = 20.0  # beyond what a node is given for its work
PINGS = 4
PAIR_SECONDS = 30.0
PAIR_SECONDS_A_PEER = 0.5
LEASE = 60.0

Answer = TypeVar("Answer", bound=Message)


@dataclass
class NodeEvidence:
    """What was found: facts by node (with "clock", "probes", "pairs", "peer_names" where those steps were made),
    the rendezvous check (None where no node was reached), and the nodes that could not be looked at. `hosts` are what
    the list has for each node, which may have sent another name."""

    nodes: dict[str, JsonObject] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    gate: Proof | None = None
    unreachable: list[Finding] = field(default_factory=list)


class NoAnswer(Exception):
    """A node did not answer an order; the text says why."""


class Peer:
    """One node being asked."""

    def __init__(self, node: Node) -> None:
        self.node, self.clock = node, NodeClock()
        self.channel: Channel | None = None
        self.failure: Finding | None = None
        self.awaited = AwaitedMessages()

    def receive(self, frames: list[Frame]) -> None:
        """Messages of this node's agent."""
        for frame in frames:
            if isinstance(frame, OutputFrame):
                continue
            try:
                message = read_message(frame)
            except DecodeError as error:
                self.lose(f"its {str(frame['type'])[:20]} message cannot be read: {error}")
                continue
            if isinstance(message, FaultMessage):
                self.lose(message.message)
            self.awaited.take(message)

    def lose(self, why: str) -> None:
        """No more answers will come."""
        self.awaited.give_up(why)


class Inspection:
    """One look at a cluster. `on_progress` is called with (what, done, of) while it goes on."""

    def __init__(
        self,
        spec: RunSpec,
        cluster: Cluster,
        setting: Setting,
        on_progress: Callable[[str, int, int], None],
        pairs: bool,
        transport: Transport,
    ) -> None:
        self._spec = spec
        self._setting = setting
        self._on_progress = on_progress
        self._pairs = pairs
        self._transport = transport
        self._peers = {n.name: Peer(n) for n in cluster.nodes}
        self._semaphore = asyncio.Semaphore(OPENING_AT_ONCE)
        self._found = NodeEvidence()

    async def run(self) -> NodeEvidence:
        """All steps; agents are released at the end, whatever happens."""
        return await run_with_callbacks(self._run())

    async def _run(self) -> NodeEvidence:
        beats = start_task(self._beat())
        try:
            await self._each("reaching nodes", self._connect)
            self._peers = {p.node.name: p for p in self._peers.values() if p.failure is None}
            await self._each("looking at nodes", self._look)
            self._found.nodes = {n: self._found.nodes[n] for n in self._peers}
            self._found.hosts = {n: p.node.host for n, p in self._peers.items()}
            if self._peers:
                await self._prove()
                if self._pairs and len(self._peers) > 1:
                    await self._reach()
        finally:
            beats.cancel()
            await self._release()
        return self._found

    async def _beat(self) -> None:
        """Agents end themselves without word for their lease, and a look may take minutes."""
        while True:
            await asyncio.sleep(LEASE / 6)
            for peer in self._peers.values():
                if peer.channel is not None and peer.channel.is_open:
                    peer.channel.send(PingOrder(time.time()))

    async def _each(self, what: str, step: Callable[[Peer], Any]) -> None:
        """One step on all nodes at once."""
        done = 0
        count = len(self._peers)
        self._on_progress(what, done, count)
        for task in asyncio.as_completed([step(peer) for peer in self._peers.values()]):
            await task
            done += 1
            self._on_progress(what, done, count)

    async def _ask(self, peer: Peer, order: Order, kind: type[Answer], seconds: float) -> Answer:
        """Give the answer, a message of `kind`; raise NoAnswer where none comes."""
        assert peer.channel is not None
        peer.awaited.expect(kind)
        peer.channel.send(order)
        try:
            message = await peer.awaited.message(kind, seconds)
        except asyncio.TimeoutError:
            raise NoAnswer(f"{peer.node.name} gave no answer within {seconds:g} s") from None
        if not isinstance(message, kind):
            raise NoAnswer(message.message if isinstance(message, FaultMessage) else "another answer")
        return message

    # -- the steps -----------------------------------------------------------------------------------

    async def _connect(self, peer: Peer) -> None:
        node = peer.node
        header = AgentHeader(
            mode="agent",
            uid=self._setting.uid,
            node=node_label(node.index),
            run_tag=run_tag(self._setting, node.index),
            lease=LEASE,
            grace=self._spec.limits.grace,
            node_dir=self._spec.places.node_dir,
            checks=tuple(collectors(self._setting.checks)),
        )
        peer.channel = Channel(node, self._transport, peer.receive, peer.lose)
        peer.awaited.expect(HelloMessage)
        try:
            async with self._semaphore:
                first = HelloOrder(lease=LEASE)
                await peer.channel.open(header, first, self._spec.limits.connect_timeout)
            answer = await peer.awaited.message(HelloMessage, ANSWER_SECONDS)
        except ChannelFailed as error:
            self._lost(peer, error.finding)
            return
        except asyncio.TimeoutError:
            self._lost(peer, self._transport.silence(node, ANSWER_SECONDS))
            return
        if not isinstance(answer, HelloMessage):
            why = answer.message if isinstance(answer, FaultMessage) else "another answer"
            self._lost(peer, self._transport.failure(node, b"", why, None))
            return
        hostname = answer.hostname
        taken = hostname in self._peers or any(p.node.name == hostname for p in self._peers.values())
        if is_address(node.name) and hostname and not taken and not hostname.startswith("localhost"):
            peer.node = dataclasses.replace(node, name=hostname)  # outputs show names

    def _lost(self, peer: Peer, finding: Finding) -> None:
        peer.failure = finding
        self._found.unreachable.append(finding)
        order = [p.failure for p in self._peers.values()]
        self._found.unreachable.sort(key=order.index)

    async def _look(self, peer: Peer) -> None:
        for _ in range(PINGS):
            with contextlib.suppress(NoAnswer):
                pong = await self._ask(peer, PingOrder(time.time()), PongMessage, ANSWER_SECONDS)
                peer.clock.sample(pong.sent, pong.t, time.time())
        order = setup_order(self._spec, self._setting)
        facts: JsonObject = {}
        try:
            answer = await self._ask(peer, order, FactsMessage, order.seconds + ANSWER_SECONDS)
            facts.update(answer.facts)
            why = answer.prelude_error or answer.error
        except NoAnswer as error:
            why = str(error)
        if why:
            facts["look"] = {"error": why}
        facts["clock"] = {"offset": round(peer.clock.offset, 4), "delay": round(peer.clock.delay or 0.0, 4)}
        self._found.nodes[peer.node.name] = facts

    async def _prove(self) -> None:
        """Make the rendezvous check of a run, up to the point where ranks would start."""
        master = next(iter(self._peers.values()))
        token = self._setting.token
        name = master.node.name
        try:
            listening = await self._ask(master, listen_order(self._spec, token), ListeningMessage, ANSWER_SECONDS)
        except NoAnswer as error:
            self._found.gate = Proof(name, error=str(error))
            return
        if listening.error is not None:
            self._found.gate = Proof(name, error=listening.error)
            return
        addresses = [offer.address for offer in offered(self._plan_facts(), name, self._spec.rendezvous.network)]
        if self._spec.rendezvous.master_addr:
            addresses = [self._spec.rendezvous.master_addr]
        self._found.gate = Proof(name, listening.port, addresses=tuple(addresses))
        order = probe_order(self._spec, addresses, listening.port, token)

        async def probe(peer: Peer) -> None:
            probes = self._found.nodes[peer.node.name]["probes"] = []
            with contextlib.suppress(NoAnswer):
                probed = await self._ask(peer, order, ProbedMessage, order.seconds + ANSWER_SECONDS)
                probes += encode(probed.results)

        await self._each(f"reaching {name}", probe)

    def _plan_facts(self) -> dict[str, NodeFacts]:
        return {name: read_facts(facts) for name, facts in self._found.nodes.items()}

    def _main_addresses(self, facts: Mapping[str, NodeFacts]) -> dict[str, str]:
        gate = self._found.gate or Proof()
        probes = {name: read_probes(node.get("probes")) for name, node in self._found.nodes.items()}
        return main_addresses(self._spec, gate.name, gate.port, list(gate.addresses), facts, probes)

    async def _reach(self) -> None:
        """Every node serves, and every node tries its peers."""
        facts = self._found.nodes
        plan = peers_of(list(self._peers))
        most = max(len(peers) for peers in plan.values())
        seconds = PAIR_SECONDS + most * PAIR_SECONDS_A_PEER
        serve = ServeOrder(self._setting.token, seconds + 2 * ANSWER_SECONDS)
        doors: dict[str, ServingMessage] = {}

        async def open_door(peer: Peer) -> None:
            with contextlib.suppress(NoAnswer):
                doors[peer.node.name] = await self._ask(peer, serve, ServingMessage, ANSWER_SECONDS)

        await self._each("opening ports", open_door)
        plan_facts = self._plan_facts()
        main = self._main_addresses(plan_facts)
        hosts = [p.node.host for p in self._peers.values()] + [str(f.get("hostname")) for f in facts.values()]
        names = sorted({host for host in hosts if not is_address(host)})

        async def reach(peer: Peer) -> None:
            name = peer.node.name
            peers = {}
            for other in plan[name]:
                door = doors.get(other)
                if door is not None and main.get(other):
                    ways = tuple(other_ways(plan_facts[name], plan_facts[other], main[other]))
                    peers[other] = PeerAddress(main[other], door.port, ways, door.udp)
            order = ReachOrder(self._setting.token, peer.node.index, seconds, tuple(names), peers)
            facts[name].update(peer_names={}, pairs={})
            with contextlib.suppress(NoAnswer):
                reached = await self._ask(peer, order, ReachedMessage, seconds + ANSWER_SECONDS)
                facts[name].update(peer_names=reached.names, pairs=reached.pairs)

        await self._each("trying every pair" if most == len(self._peers) - 1 else "trying pairs", reach)

    async def _release(self) -> None:
        open_ones = [p for p in self._peers.values() if p.channel is not None and p.channel.is_open]
        for peer in open_ones:
            assert peer.channel is not None
            peer.channel.send(ReleaseOrder())
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and any(p.channel is not None and p.channel.is_open for p in open_ones):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        for peer in self._peers.values():
            if peer.channel is not None:
                peer.channel.close()
