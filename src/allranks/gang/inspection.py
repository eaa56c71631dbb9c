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
from typing import Any

from allranks.cluster import Cluster, Node
from allranks.cluster.names import is_address
from allranks.findings import Finding
from allranks.plan.facts import NodeFacts, read_facts, read_probes
from allranks.plan.network import offered
from allranks.plan.reach import main_addresses, other_ways
from allranks.preflight.schedule import peers_of
from allranks.protocol.frames import PROTOCOL, Frame
from allranks.settings import RunSpec

from .channel import Channel, ChannelFailed
from .clocks import Clock
from .places import Setting, collectors, listen_message, mark, node_label, probe_message, setup_message
from .tasks import run_with_callbacks, start_task
from .transport import Transport

OPENING_AT_ONCE = 64
ANSWER_SECONDS = 20.0  # beyond what a node is given for its work
PINGS = 4
PAIR_SECONDS = 30.0
PAIR_SECONDS_A_PEER = 0.5
LEASE = 60.0

Message = dict[str, Any]


@dataclass
class Evidence:
    """What was found: facts by node (with "clock", "probes", "pairs", "peer_names" where those steps were made),
    the gate ("name", "port", "error", "addresses"), and the nodes that could not be looked at. `hosts` are what the
    list has for each node, which may have told another name."""

    nodes: dict[str, Message] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    gate: Message = field(default_factory=dict)
    unreachable: list[Finding] = field(default_factory=list)


class Peer:
    """One node being asked."""

    def __init__(self, node: Node) -> None:
        self.node, self.clock = node, Clock()
        self.channel: Channel | None = None
        self.failure: Finding | None = None
        self._waiting: dict[str, asyncio.Future[Message]] = {}

    def expect(self, kind: str) -> asyncio.Future[Message]:
        """The next message of a kind."""
        self._waiting[kind] = asyncio.get_running_loop().create_future()
        return self._waiting[kind]

    def receive(self, frames: list[Frame]) -> None:
        """Messages of this node's agent."""
        for frame in frames:
            if not isinstance(frame, dict):
                continue
            if frame["type"] == "fault":
                self.lose(str(frame.get("message")))
            waiting = self._waiting.get(frame["type"])
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)

    def lose(self, why: str) -> None:
        """No more answers will come."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"type": "fault", "error": why})


class Inspection:
    """One look at a cluster. `told` is called with (what, done, of) while it goes on."""

    def __init__(
        self,
        spec: RunSpec,
        cluster: Cluster,
        setting: Setting,
        told: Callable[[str, int, int], None],
        pairs: bool,
        transport: Transport,
    ) -> None:
        self._spec = spec
        self._setting = setting
        self._told = told
        self._pairs = pairs
        self._transport = transport
        self._peers = {n.name: Peer(n) for n in cluster.nodes}
        self._semaphore = asyncio.Semaphore(OPENING_AT_ONCE)
        self._found = Evidence()

    async def run(self) -> Evidence:
        """All steps; agents are released at the end, whatever happens."""
        return await run_with_callbacks(self._run())

    async def _run(self) -> Evidence:
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
                    peer.channel.send({"type": "ping", "sent": time.time()})

    async def _each(self, what: str, step: Callable[[Peer], Any]) -> None:
        """One step on all nodes at once."""
        done = 0
        count = len(self._peers)
        self._told(what, done, count)
        for task in asyncio.as_completed([step(peer) for peer in self._peers.values()]):
            await task
            done += 1
            self._told(what, done, count)

    async def _ask(self, peer: Peer, message: Mapping[str, Any], answer: str, seconds: float) -> Message:
        """The answer; {"error": …} where none came."""
        assert peer.channel is not None
        waiting = peer.expect(answer)
        peer.channel.send(message)
        try:
            return await asyncio.wait_for(waiting, seconds)
        except asyncio.TimeoutError:
            return {"error": f"{peer.node.name} gave no answer within {seconds:g} s"}

    # -- the steps -----------------------------------------------------------------------------------

    async def _connect(self, peer: Peer) -> None:
        node = peer.node
        header = {
            "mode": "agent",
            "uid": self._setting.uid,
            "node": node_label(node.index),
            "mark": mark(self._setting, node.index),
            "lease": LEASE,
            "grace": self._spec.limits.grace,
            "node_dir": self._spec.places.node_dir,
            "checks": collectors(self._setting.checks),
        }
        peer.channel = Channel(node, self._transport, peer.receive, peer.lose)
        hello = peer.expect("hello")
        try:
            async with self._semaphore:
                first = {"type": "hello", "protocol": PROTOCOL, "lease": LEASE, "have": {}}
                await peer.channel.open(header, first, self._spec.limits.connect_timeout)
            answer = await asyncio.wait_for(hello, ANSWER_SECONDS)
        except ChannelFailed as error:
            self._lost(peer, error.finding)
            return
        except asyncio.TimeoutError:
            self._lost(peer, self._transport.silence(node, ANSWER_SECONDS))
            return
        if answer.get("error"):
            self._lost(peer, self._transport.failure(node, b"", str(answer["error"]), None))
            return
        hostname = str(answer.get("hostname") or "")
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
            pong = await self._ask(peer, {"type": "ping", "sent": time.time()}, "pong", ANSWER_SECONDS)
            if "sent" in pong:
                peer.clock.sample(float(pong["sent"]), float(pong["t"]), time.time())
        message = setup_message(self._spec, self._setting)
        answer = await self._ask(peer, message, "facts", float(message["seconds"]) + ANSWER_SECONDS)
        facts = dict(answer.get("facts") or {})
        error = answer.get("prelude_error") or answer.get("error")
        if error:
            facts["look"] = {"error": str(error)}
        facts["clock"] = {"offset": round(peer.clock.offset, 4), "delay": round(peer.clock.delay or 0.0, 4)}
        self._found.nodes[peer.node.name] = facts

    async def _prove(self) -> None:
        """The gate of a run, up to the point where ranks would start."""
        master = next(iter(self._peers.values()))
        token = self._setting.token
        answer = await self._ask(master, listen_message(self._spec, token), "listening", ANSWER_SECONDS)
        gate = self._found.gate = {"name": master.node.name, "port": int(answer.get("port") or 0)}
        if answer.get("error"):
            gate["error"] = answer["error"]
            return
        offers = offered(self._plan_facts(), master.node.name, self._spec.rendezvous.network)
        gate["addresses"] = (
            [self._spec.rendezvous.master_addr] if self._spec.rendezvous.master_addr else [o.address for o in offers]
        )
        message = probe_message(self._spec, gate["addresses"], gate["port"], token)

        async def probe(peer: Peer) -> None:
            found = await self._ask(peer, message, "probed", float(message["seconds"]) + ANSWER_SECONDS)
            self._found.nodes[peer.node.name]["probes"] = list(found.get("results") or ())

        await self._each(f"reaching {master.node.name}", probe)

    def _plan_facts(self) -> dict[str, NodeFacts]:
        return {name: read_facts(facts) for name, facts in self._found.nodes.items()}

    def _main_addresses(self, facts: Mapping[str, NodeFacts]) -> dict[str, str]:
        gate = self._found.gate
        probes = {name: read_probes(node.get("probes")) for name, node in self._found.nodes.items()}
        offers = list(gate.get("addresses") or ())
        return main_addresses(self._spec, gate.get("name", ""), gate.get("port") or 0, offers, facts, probes)

    async def _reach(self) -> None:
        """Every node serves, and every node tries its peers."""
        facts = self._found.nodes
        plan = peers_of(list(self._peers))
        most = max(len(peers) for peers in plan.values())
        seconds = PAIR_SECONDS + most * PAIR_SECONDS_A_PEER
        serve = {"type": "serve", "token": self._setting.token, "seconds": seconds + 2 * ANSWER_SECONDS}
        doors: dict[str, Message] = {}

        async def open_door(peer: Peer) -> None:
            doors[peer.node.name] = await self._ask(peer, serve, "serving", ANSWER_SECONDS)

        await self._each("opening ports", open_door)
        plan_facts = self._plan_facts()
        main = self._main_addresses(plan_facts)
        hosts = [p.node.host for p in self._peers.values()] + [str(f.get("hostname")) for f in facts.values()]
        names = sorted({host for host in hosts if not is_address(host)})

        async def reach(peer: Peer) -> None:
            mine = peer.node.name
            wanted = {
                name: {
                    "address": main[name],
                    "ways": other_ways(plan_facts[mine], plan_facts[name], main[name]),
                    "port": doors[name]["port"],
                    "udp": doors[name].get("udp"),
                }
                for name in plan[mine]
                if main.get(name) and doors[name].get("port")
            }
            message = {
                "type": "reach",
                "token": self._setting.token,
                "sender": peer.node.index,
                "names": names,
                "peers": wanted,
                "seconds": seconds,
            }
            found = await self._ask(peer, message, "reached", seconds + ANSWER_SECONDS)
            facts[mine]["peer_names"] = found.get("names") or {}
            facts[mine]["pairs"] = found.get("pairs") or {}

        await self._each("trying every pair" if most == len(self._peers) - 1 else "trying pairs", reach)

    async def _release(self) -> None:
        open_ones = [p for p in self._peers.values() if p.channel is not None and p.channel.is_open]
        for peer in open_ones:
            assert peer.channel is not None
            peer.channel.send({"type": "release"})
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and any(p.channel is not None and p.channel.is_open for p in open_ones):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        for peer in self._peers.values():
            if peer.channel is not None:
                peer.channel.close()
