"""Rendezvous check: the master listens, every node proves that it reaches it, before any rank starts. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace

from allranks.findings import Finding, Where
from allranks.plan.network import (
    choose_address,
    main_addresses,
    no_address,
    not_tried,
    offered,
    port_taken,
    target_words,
)
from allranks.protocol.messages import ListeningMessage, ProbedMessage, ReadyMessage
from allranks.protocol.run_facts import GateListening, GateProved, PlanMade, Stamped

from .changing_world import ChangingWorld
from .ending import Ending
from .places import listen_order, probe_order
from .preloading import Preloading
from .ready_test import ReadyTest
from .roster import Roster
from .running import Running
from .states import Action, MayStart, Send, State, Tick

PORT_REPEATS = 3  # for EADDRINUSE at rank 0 on a port that allranks chose


class RendezvousCheck:
    """The phase between the plan and the start of the ranks."""

    def __init__(
        self,
        roster: Roster,
        ending: Ending,
        running: Running,
        preloading: Preloading,
        world: ChangingWorld,
        *,
        ready_test: ReadyTest,
    ) -> None:
        self.roster = roster
        self.world = world
        self.ending = ending
        self.running = running
        self.preloading = preloading
        self.ready_test = ready_test
        self._asked_before: set[str] = set()  # nodes that look whether the port of a ready test is free
        self._began_at = 0.0
        self._port_repeats = 0
        self._interfaces: Mapping[str, Mapping[str, str]] | None = None  # of ranks that may start once other roles have

    def begin_attempt(self, with_another_port: bool) -> None:
        """Count the attempts that only another port began."""
        self._port_repeats += 1
        if not with_another_port:
            self._port_repeats = 0

    def begin(self, now: float) -> list[Action]:
        """Every node has passed: the master opens its port."""
        roster = self.roster
        assert roster.plan is not None
        roster.state = State.LISTENING
        self._began_at = now
        for planned, node in roster.planned():
            node.state = "ready"
            node.probes = None
            node.begin_attempt()
            node.take_ranks(planned.ranks)
        plan = PlanMade(roster.plan.world_size, roster.rank_counts)
        return [
            *self.world.said(),
            roster.stamp(plan),
            Send(roster.master.name, listen_order(roster.spec, self._token(), len(roster.context.ports))),
            *self.preloading.begin(),
        ]

    @property
    def port_was_taken(self) -> bool:
        """Whether rank 0 lost the race for a port that allranks chose: the check is repeated, it costs no attempt."""
        roster = self.roster
        ends = [end.fact for end in roster.exits]
        errors = [end.error for end in ends if end.rank == 0 and not end.expected and end.error]
        text = str(errors[0].get("message", "")) if errors and errors[0] else ""
        is_taken = "EADDRINUSE" in text or "address already in use" in text.lower()
        may_repeat = roster.spec.rendezvous.master_port == 0 and roster.stop_reason is None and roster.can_retry
        return is_taken and may_repeat and self._port_repeats < PORT_REPEATS

    def _token(self) -> str:
        return f"{self.roster.context.token}/{self.roster.attempt}/{self._port_repeats}"

    def _offers(self) -> list[str]:
        roster = self.roster
        if roster.spec.rendezvous.master_addr:
            return [roster.spec.rendezvous.master_addr]
        addresses = offered(roster.plan_facts, roster.master.name, roster.spec.rendezvous.network)
        if not roster.role.is_plain and not roster.spec.target.local:  # other roles have to reach it too
            addresses = [one for one in addresses if not ipaddress.ip_address(one).is_loopback] or addresses
        return addresses[:1] if roster.spec.target.local else addresses  # virtual nodes share the loopback

    # -- events ------------------------------------------------------------------------------------

    def on_listening(self, stamped: Stamped[ListeningMessage], now: float) -> list[Action]:
        """Let every node try every address of the master, whose port is open."""
        roster = self.roster
        if stamped.fact.error is not None:
            taken = port_taken(roster.master.name, stamped.fact.error, target_words(roster.spec))
            return self.ending.refuse([taken], now)
        roster.master_port = stamped.fact.port
        roster.ports = roster.ports or stamped.fact.more
        roster.state = State.PROVING
        addresses = self._offers()
        if not addresses:
            return self.ending.refuse([no_address(roster.spec, roster.master.name)], now)
        order = probe_order(roster.spec, addresses, roster.master_port, self._token())
        note = roster.stamp(GateListening(tuple(addresses), roster.master_port), roster.master.name)
        return [note, *(Send(name, order) for name in roster.nodes)]

    def on_probed(self, stamped: Stamped[ProbedMessage], now: float) -> list[Action]:
        """When every node has answered: the best address that all reach, or who does not reach which."""
        roster = self.roster
        master = roster.master.name
        if stamped.fact.error:
            return self.ending.refuse([not_tried(stamped.node, stamped.fact.error)], now)
        roster.nodes[stamped.node].probes = stamped.fact.results
        actions: list[Action] = []
        if not stamped.fact.shared:
            actions.append(roster.add_finding(self._not_shared(stamped.node)))
        if roster.any_node("probes", lambda node: node.probes is None):
            return actions
        probes = {n.name: n.probes or () for n in roster.nodes.values()}
        forwarded = roster.context.forwarded
        choice = choose_address(roster.spec, master, roster.master_port, roster.plan_facts, probes, forwarded)
        actions += roster.add_passing(choice.findings)
        failures = [f for f in choice.findings if f.status == "fail"]
        if failures or choice.address is None:
            return actions + self.ending.refuse(failures, now)
        roster.master_addr = choice.address
        network = roster.spec.rendezvous.network
        main = main_addresses(network, self._offers(), roster.plan_facts, choice.interfaces)
        roster.addresses = {**main, master: choice.address}
        seconds = round(now - self._began_at, 3)
        proved = GateProved(choice.address, roster.master_port, seconds, roster.rank_counts)
        actions.append(roster.stamp(proved, master))
        if not roster.may_start:
            self._interfaces = choice.environment
            return actions
        return actions + self.running.start(choice.environment)

    def _not_shared(self, node: str) -> Finding:
        master = self.roster.master.name
        directory = f"{self.roster.spec.places.output_dir} on {node} is not the directory that {master} sees"
        remedy = "name a directory of a shared file system, or leave --output-dir out"
        message = f"{directory}: each node keeps its own outputs"
        return Finding("output-dir-not-shared", "warn", message, remedy, Where(node=node, peer=master))

    def on_may_start(self, stamped: Stamped[MayStart], now: float) -> list[Action]:
        """Start the ranks of a role, whose turn it is; those of a further attempt need not wait."""
        roster = self.roster
        roster.may_start = True
        roster.context = replace(roster.context, peers=stamped.fact.peers)
        if self._interfaces is None:
            return []
        looks = self.ready_test.looks_before()
        self._asked_before = {look.node for look in looks}
        return [*looks] if looks else self._start_in_turn(now)

    def on_ready_before(self, stamped: Stamped[ReadyMessage], now: float) -> list[Action]:
        """Start the ranks once nothing answers where they will; else refuse it."""
        self._asked_before.discard(stamped.node)
        if stamped.fact.is_there:
            return self.ending.refuse([self.ready_test.taken(stamped.node, stamped.fact.answer)], now)
        return [] if self._asked_before else self._start_in_turn(now)

    def _start_in_turn(self, now: float) -> list[Action]:
        interfaces = self._interfaces
        if interfaces is None:
            return []
        self._interfaces = None
        self.roster.start_at = now
        return self.running.start(interfaces)

    def on_tick(self, stamped: Stamped[Tick], now: float) -> list[Action]:
        """Time limits of the check. What a role waits for has limits of its own."""
        if self._interfaces is not None:
            return []
        return self.ending.on_tick_of_start(stamped, now)
