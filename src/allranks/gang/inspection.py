"""`allranks check` on the nodes: facts, the proof of the master's port, every pair; no ranks (IO, no judgement).

The same agents and channels as a run's. Each step asks all nodes at once and waits for the slowest.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from allranks.cluster import Cluster, Node
from allranks.cluster.names import is_address
from allranks.findings import Finding
from allranks.plan.network import Choice, choose_address, main_addresses, offered, other_ways
from allranks.preflight.check import Check
from allranks.preflight.judge import judge
from allranks.preflight.peer_pairs import covered, peers_of
from allranks.preflight.typed_facts import Proof
from allranks.protocol.codec import encode
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.messages import (
    FactsMessage,
    HelloMessage,
    ListeningMessage,
    PongMessage,
    ProbedMessage,
    ReachedMessage,
    ServingMessage,
)
from allranks.protocol.orders import HelloOrder, PeerAddress, PingOrder, ReachOrder, ServeOrder
from allranks.protocol.plan_facts import NodeFacts, read_facts, read_probes
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import PreflightDocument
from allranks.runs.preflight import document, save
from allranks.settings import RunSpec

from .channel import NodeFailed
from .clocks import NodeClock
from .node_session import ANSWER_SECONDS, OPENING_AT_ONCE, NoAnswer, NodeSession, beat_all, shown_name
from .places import RunContext, collectors, judge_request, listen_order, node_label, probe_order, run_tag, setup_order
from .session import make_context, names_of
from .tasks import run_loop, run_with_callbacks, start_task
from .transport import Transport

PINGS = 4
PAIR_SECONDS = 30.0
PAIR_SECONDS_A_PEER = 0.5
LEASE = 60.0


class Inspection:
    """One look at a cluster. `on_progress` is called with (what, done, of) while it goes on.

    `facts` by node have "clock", "probes", "pairs" and "peer_names" where those steps were made. `gate` is the
    rendezvous check (None where no node was reached). `hosts` are what the list has for each node, which may have sent
    another name.
    """

    def __init__(
        self,
        spec: RunSpec,
        cluster: Cluster,
        context: RunContext,
        on_progress: Callable[[str, int, int], None],
        pairs: bool,
        transport: Transport,
    ) -> None:
        self._spec = spec
        self._context = context
        self._on_progress = on_progress
        self._pairs = pairs
        self._transport = transport
        self._peers = {n.name: NodeSession(n, transport) for n in cluster.nodes}
        self._semaphore = asyncio.Semaphore(OPENING_AT_ONCE)
        self.facts: dict[str, JsonObject] = {}
        self.hosts: dict[str, str] = {}
        self.gate: Proof | None = None
        self._failures: dict[str, Finding] = {}  # by the names of the list
        self.unreachable: list[Finding] = []

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that were reached, by the names that they have said."""
        return tuple(peer.node for peer in self._peers.values())

    async def run(self) -> None:
        """All steps; agents are released at the end, whatever happens."""
        beats = start_task(beat_all(lambda: self._peers.values(), LEASE))
        try:
            await self._each("reaching nodes", self._connect)
            self.unreachable = [self._failures[name] for name in self._peers if name in self._failures]
            self._peers = {p.node.name: p for name, p in self._peers.items() if name not in self._failures}
            await self._each("looking at nodes", self._look)
            self.facts = {n: self.facts[n] for n in self._peers}
            self.hosts = {n: p.node.host for n, p in self._peers.items()}
            if self._peers:
                await self._prove()
                if self._pairs and len(self._peers) > 1:
                    await self._reach()
        finally:
            beats.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*(peer.release() for peer in self._peers.values()))
            for peer in self._peers.values():
                peer.close()

    async def _each(self, what: str, step: Callable[[NodeSession], Any]) -> None:
        done = 0
        count = len(self._peers)
        self._on_progress(what, done, count)
        for task in asyncio.as_completed([step(peer) for peer in self._peers.values()]):
            await task
            done += 1
            self._on_progress(what, done, count)

    # -- the steps -----------------------------------------------------------------------------------

    async def _connect(self, peer: NodeSession) -> None:
        node = peer.node
        header = AgentHeader(
            mode="agent",
            uid=self._context.uid,
            node=node_label(node.index),
            run_tag=run_tag(self._context, node.index),
            lease=LEASE,
            grace=self._spec.limits.grace,
            node_dir=self._spec.places.node_dir,
            checks=tuple(collectors(self._context.checks)),
        )
        try:
            async with self._semaphore:
                first = HelloOrder(lease=LEASE)
                hello = await peer.open(header, first, HelloMessage, self._spec.limits.connect_timeout)
        except NodeFailed as error:
            self._failures[node.name] = error.finding
            return
        taken = {*self._peers, *(other.node.name for other in self._peers.values())}
        peer.node = dataclasses.replace(node, name=shown_name(node, hello.hostname, taken))

    async def _look(self, peer: NodeSession) -> None:
        clock = NodeClock()
        for _ in range(PINGS):
            with contextlib.suppress(NoAnswer):
                pong = await peer.ask(PingOrder(time.time()), PongMessage, ANSWER_SECONDS)
                clock.sample(pong.sent, pong.t, time.time())
        order = setup_order(self._spec, self._context)
        facts: JsonObject = {}
        try:
            answer = await peer.ask(order, FactsMessage, order.seconds + ANSWER_SECONDS)
            facts.update(answer.facts)
            why = answer.error
        except NoAnswer as error:
            why = str(error)
        if why:
            facts["look"] = {"error": why}
        facts["clock"] = clock.facts()
        self.facts[peer.node.name] = facts

    async def _prove(self) -> None:
        master = next(iter(self._peers.values()))
        token = self._context.token
        name = master.node.name
        try:
            listening = await master.ask(listen_order(self._spec, token), ListeningMessage, ANSWER_SECONDS)
        except NoAnswer as error:
            self.gate = Proof(name, error=str(error))
            return
        if listening.error is not None:
            self.gate = Proof(name, error=listening.error)
            return
        addresses = offered(self._plan_facts(), name, self._spec.rendezvous.network)
        if self._spec.rendezvous.master_addr:
            addresses = [self._spec.rendezvous.master_addr]
        self.gate = Proof(name, listening.port, addresses=tuple(addresses))
        order = probe_order(self._spec, addresses, listening.port, token)

        async def probe(peer: NodeSession) -> None:
            try:
                probed = await peer.ask(order, ProbedMessage, order.seconds + ANSWER_SECONDS)
            except NoAnswer as error:
                probed = ProbedMessage(error=str(error))
            probes = {"error": probed.error} if probed.error else encode(probed.results)
            self.facts[peer.node.name]["probes"] = probes

        await self._each(f"reaching {name}", probe)

    def _plan_facts(self) -> dict[str, NodeFacts]:
        return {name: read_facts(facts) for name, facts in self.facts.items()}

    async def _reach(self) -> None:
        facts = self.facts
        plan = peers_of(list(self._peers))
        most = max(len(peers) for peers in plan.values())
        seconds = PAIR_SECONDS + most * PAIR_SECONDS_A_PEER
        serve = ServeOrder(self._context.token, seconds + 2 * ANSWER_SECONDS)
        doors: dict[str, ServingMessage] = {}

        async def open_door(peer: NodeSession) -> None:
            with contextlib.suppress(NoAnswer):
                doors[peer.node.name] = await peer.ask(serve, ServingMessage, ANSWER_SECONDS)

        await self._each("opening ports", open_door)
        plan_facts = self._plan_facts()
        probes = {name: read_probes(of_node.get("probes")) for name, of_node in facts.items()}
        gate = self.gate or Proof()
        choice = choose_address(self._spec, gate.name, gate.port, plan_facts, probes) if gate.port else Choice(None)
        main = main_addresses(self._spec.rendezvous.network, gate.addresses, plan_facts, choice.interfaces)
        hosts = [p.node.host for p in self._peers.values()] + [str(f.get("hostname")) for f in facts.values()]
        names = sorted({host for host in hosts if not is_address(host)})

        async def reach(peer: NodeSession) -> None:
            name = peer.node.name
            peers = {}
            for other in plan[name]:
                door = doors.get(other)
                if door is not None and main.get(other):
                    ways = tuple(other_ways(plan_facts[name], plan_facts[other], main[other]))
                    peers[other] = PeerAddress(main[other], door.port, ways, door.udp)
            order = ReachOrder(self._context.token, peer.node.index, seconds, tuple(names), peers)
            facts[name].update(peer_names={}, pairs={})
            with contextlib.suppress(NoAnswer):
                reached = await peer.ask(order, ReachedMessage, seconds + ANSWER_SECONDS)
                facts[name].update(peer_names=encode(reached.names), pairs=encode(reached.pairs))

        await self._each("trying every pair" if most == len(self._peers) - 1 else "trying pairs", reach)


def look_at_nodes(
    spec: RunSpec,
    cluster: Cluster,
    run: RunDirectory,
    checks: Sequence[Check],
    progress: Callable[[str, int, int], None],
    transport: Transport,
) -> PreflightDocument:
    """Look at the cluster and save evidence/preflight.json in the run directory."""
    context = make_context(spec, cluster, os.environ, os.getcwd(), names_of(run), tuple(checks))
    pairs = not spec.target.local and any(c.needs in ("pairs", "peer_names") for c in checks)
    inspection = Inspection(spec, cluster, context, progress, pairs, transport)
    run_loop(lambda: run_with_callbacks(inspection.run()))
    named = dataclasses.replace(cluster, nodes=inspection.nodes)
    request = judge_request(spec, context, named)
    facts = inspection.facts
    if inspection.gate is not None:  # else no node was reached, and the rendezvous check was not tried
        request["gate"] = encode(inspection.gate)
    tried = covered(len(facts)) if any("pairs" in of_node for of_node in facts.values()) else ""
    saved = document(request, facts, [c.name for c in checks], time.time())
    saved = saved._replace(unreachable=tuple(inspection.unreachable), covered=tried, hosts=inspection.hosts)
    save(run, saved)
    return saved


def judge_evidence(evidence: PreflightDocument, checks: Iterable[Check], allow: Sequence[str]) -> list[Finding]:
    """Unreachable nodes, then what the checks say of the others."""
    lost = [finding._replace(check="reached") for finding in evidence.unreachable]
    return lost + judge(evidence.request, evidence.nodes, checks, allow)
