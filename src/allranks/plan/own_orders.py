"""The orders of a node that joined by itself: when, where and how many are the coordinator's words (pure).

What runs, in which directory and with which variables stands in this node's own arguments. So an order to look at the
node, to start or to import is made here. Who knows the secret of a join belongs to the run: what else it orders passes,
within the bounds of the fields. Arguments that differ are a mistake, which ends this node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allranks.cluster import Node
from allranks.protocol.codec import DecodeError
from allranks.protocol.header import AgentHeader
from allranks.protocol.jsontext import Json, JsonObject
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import (
    ORDERS,
    KeepOrder,
    ListenOrder,
    Order,
    PreloadOrder,
    ProbeOrder,
    SetupOrder,
    ShipOrder,
    StartOrder,
    StartTerms,
)
from allranks.protocol.plan_facts import NodeFacts, read_facts
from allranks.settings import RunSpec

from .environment import NodeLaunch, Place
from .launchers.collectives import of_a_stage
from .plan import orders, preload_order, ranks_of
from .ranks import Attempt, NodePlan


class NotOurs(ValueError):
    """An order that this node does not carry out; the text says why."""


class OwnOrders:
    """Makes one node's orders. What its agent has said is part of them.

    `setup` asks for its facts as it asks itself. `spec` is that of its `role`.
    """

    def __init__(self, spec: RunSpec, setup: SetupOrder, checks: Sequence[str], role: str = "") -> None:
        self._spec = spec
        self._setup = setup
        self._checks = checks
        self._role = role
        self._node_dir = ""
        self._facts = NodeFacts()

    def heard(self, message: Mapping[str, Json]) -> None:
        """Remember what this node's own agent says."""
        kind = message.get("type")
        if kind == "hello":
            self._node_dir = str(message.get("node_dir") or "")
        elif kind == "facts":
            self._facts = read_facts(message.get("facts"))

    def header(self, header: AgentHeader) -> AgentHeader:
        """Make the header of a relay with this node's own directory, and what its own arguments ask for."""
        return header._replace(
            node_dir=self._spec.places.node_dir,
            checks=self._known(header.checks),
            tests=bool(self._spec.tests.test),
            audit=bool(self._spec.recovery.audit_data),
        )

    def order(self, message: JsonObject) -> JsonObject:
        """Make an order as this node's agent may have it; raise NotOurs."""
        try:
            order = ORDERS.read(message)
        except DecodeError as error:
            raise NotOurs(f"an order that does not fit ({error})") from None
        return ORDERS.write(self._own(order))

    def _own(self, order: Order) -> Order:
        match order:
            case SetupOrder():
                return self._setup._replace(uid=order.uid, checks=self._known(order.checks), seconds=order.seconds)
            case ListenOrder() | ProbeOrder():
                return order._replace(nonce_dir=self._spec.places.output_dir)
            case StartOrder():
                return orders(self._launch(order.terms))
            case PreloadOrder():
                return preload_order(self._launch(order.terms))
            case ShipOrder() | KeepOrder():
                raise NotOurs(f"a message of type {ORDERS.word(order)!r}")
        return order

    def _known(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name in self._checks)

    def _launch(self, terms: StartTerms | None) -> NodeLaunch:
        if terms is None:
            raise NotOurs("a start without terms")
        spec = self._spec_for(terms)
        outputs = spec.places.output_dir or NodeFiles(self._node_dir).outputs
        place = Place(
            node_dir=self._node_dir,
            workdir=self._setup.workdir or "",
            output_dir=f"{outputs}/{self._role}".rstrip("/") if spec.places.output_dir else outputs,
            outputs_here=False,
            run_tag=terms.run_tag,
            run=terms.run,
            interfaces=terms.interfaces,
            torch=self._facts.interpreter.torch or "",
            role=self._role,
            peers=terms.peers,
        )
        attempt = Attempt(terms.attempt, terms.master_addr, terms.master_port, terms.repeats, terms.tests)
        return NodeLaunch(spec, terms.world_size, self._node_plan(spec, terms), place, attempt, self._facts)

    def _spec_for(self, terms: StartTerms) -> RunSpec:
        spec = self._spec
        if terms.tests is None and not spec.launch.command:
            raise NotOurs("a training program on a node that was started to be looked at or tested")
        if terms.tests is not None and not spec.tests.test:
            raise NotOurs("collective tests on a node that was not started to be tested")
        if terms.tests is None:
            return spec
        return (of_a_stage(spec) if spec.tests.suite == "staged" else spec).changed(launcher="direct")

    def _node_plan(self, spec: RunSpec, terms: StartTerms) -> NodePlan:
        this = Node(terms.index_, "this", "this")
        wanted, why = ranks_of(spec, this, self._facts, terms.of)
        if terms.nproc != wanted:
            raise NotOurs(f"{terms.nproc} ranks on a node that runs {wanted} ({why})")
        own = (spec.target.node_rank, spec.target.nodes or 1)
        if terms.tests is None and (terms.index_, terms.of) != own:
            raise NotOurs(f"the place of node {terms.index_} of {terms.of} on node {own[0]} of {own[1]}")
        return NodePlan(this, terms.nproc, terms.first_rank, terms.of, terms.index_)
