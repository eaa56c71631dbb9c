"""Which ranks are where: NodePlan, Plan, and the Attempt they are started in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from allranks.cluster import Node
from allranks.protocol.orders import SuiteNodes


@dataclass(frozen=True)
class NodePlan:
    """The ranks of one node: `first_rank` … `first_rank + nproc - 1`. `rank` is the node's own, from 0."""

    node: Node
    nproc: int
    first_rank: int
    of: int  # number of nodes
    rank: int = 0

    @property
    def ranks(self) -> range:
        """Those of the node."""
        return range(self.first_rank, self.first_rank + self.nproc)


@dataclass(frozen=True)
class Plan:
    """All nodes' ranks. World size is the sum."""

    nodes: tuple[NodePlan, ...]

    @cached_property
    def world_size(self) -> int:
        """Number of ranks in all."""
        return sum(n.nproc for n in self.nodes)

    def with_node(self, old: str, new: Node) -> Plan:
        """Put another node in the place of one, with the same ranks."""
        return Plan(tuple(replace(n, node=new) if n.node.name == old else n for n in self.nodes))


@dataclass(frozen=True)
class Attempt:
    """What differs between attempts: number, address, port. `repeats`: of these, those that cost no attempt.

    `tests` where the collective tests run and not the program. `last_verdict`: why the attempt before failed.
    """

    number: int
    master_addr: str
    master_port: int | str  # a text in <> where it is chosen later
    repeats: int = 0
    tests: SuiteNodes | None = None
    last_verdict: str = ""
    former_world_size: int = 0  # of the attempt before; 0: there was none
