"""Which role of a run starts when, and what the end of one means for the others. Pure.

    addresses of all roles are proved --> a role starts once those that it comes after are ready
    a role fails                      --> the run fails, the role is restarted, or nothing, as `on_failure` says
    every role that ends the run is done --> the others are ended

Each role is a gang of its own, and its facts tell how it gets on. A plain run has one role, which waits for no other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from allranks.cluster import Cluster
from allranks.diagnose.roles import DONE, FAILED, LOST_SERVER, is_fatal
from allranks.protocol.attempts import AttemptEnd
from allranks.protocol.messages import ExitMessage
from allranks.protocol.run_facts import Fact, FailureNoted, GateProved, HangSuspected, RoleLooked, RoleReady
from allranks.settings import RunSpec
from allranks.settings.ray import DRIVER
from allranks.settings.roles import deal, ports_of, roles_of, spec_of
from allranks.settings.runspec import Role

from .places import RunContext
from .states import LooksComing, LookWanted, MayStart, RoleSeen

# Seconds in which a role may fail by itself too, before it is ended because another one did. A server that dies has
# closed its port before its process has ended: where a rank has lost a connection, that end is waited for. So it is
# where a driver of Ray has ended: it sees the end of its raylet before all else.
PEERS_SPEAK = 0.3
SERVER_SPEAKS = 1.5


class EndRole(NamedTuple):
    """A role is ended, `delay` seconds from now."""

    reason: str
    delay: float = 0.0


RoleDecision = tuple[str, EndRole | MayStart | LookWanted | LooksComing | RoleSeen]  # the role, and what it hears


class Conductor:
    """Decides over all roles by their facts."""

    def __init__(self, roles: Sequence[Role]) -> None:
        self._roles = {role.name: role for role in roles}
        self._proved: set[str] = set()
        self._ready: set[str] = set()
        self._started: set[str] = set()
        self._over: set[str] = set()
        self._ended: set[str] = set()  # that were asked to end
        self.failed: list[str] = []  # in the order in which they failed for good, or began to
        self._lost: set[str] = set()  # a rank has lost its connection to a server
        self._standing: list[str] = []  # roles that stand still, and hear what others do

    def take(self, name: str, fact: Fact) -> list[RoleDecision]:
        """Take a fact of a role, and return what follows for others."""
        role = self._roles[name]
        if isinstance(fact, GateProved):
            self._proved.add(name)
            return self._starts()
        if isinstance(fact, RoleReady):
            self._ready.add(name)
            return self._starts()
        if isinstance(fact, ExitMessage) and LOST_SERVER.search(str(fact.error or "")):
            self._lost.add(name)
        if isinstance(fact, FailureNoted) and role.on_failure == "end" and name not in self._ended:
            return self._fail(name, SERVER_SPEAKS if self._may_be_a_victim(role) else PEERS_SPEAK)
        if isinstance(fact, HangSuspected):
            others = tuple(other for other in self._roles if other in self._started - self._over - {name})
            self._standing.append(name)
            looks: list[RoleDecision] = [(other, LookWanted()) for other in others]
            return [(name, LooksComing(others)), *looks] if others else []
        if isinstance(fact, RoleLooked):
            return [(other, RoleSeen(name, fact)) for other in dict.fromkeys(self._standing) if other != name]
        if isinstance(fact, AttemptEnd) and fact.decision == "finish":
            return self._finish(role, fact.outcome)
        return []

    def _may_be_a_victim(self, role: Role) -> bool:
        return role.name in self._lost or role.launcher == DRIVER

    def _starts(self) -> list[RoleDecision]:
        if self._proved != set(self._roles):
            return []
        ready = [
            role.name
            for role in self._roles.values()
            if role.name not in self._started and set(role.after) <= self._ready and not self._ended
        ]
        self._started.update(ready)
        return [(name, MayStart({})) for name in ready]  # who carries it out knows the addresses

    def _finish(self, role: Role, outcome: str) -> list[RoleDecision]:
        self._over.add(role.name)
        if outcome == "failed" and is_fatal(role, list(self._roles.values()), role.name in self._ready):
            return self._fail(role.name, SERVER_SPEAKS if self._may_be_a_victim(role) else 0.0)
        if not self.failed and all(other.name in self._over for other in self._roles.values() if other.ends == "run"):
            return self._end_others(self._over, DONE, 0.0)
        return []

    def _fail(self, name: str, delay: float) -> list[RoleDecision]:
        if name in self._ended:
            return []
        if name not in self.failed:
            self.failed.append(name)
        return self._end_others({*self._over, *self.failed}, FAILED, delay)

    def _end_others(self, but: Iterable[str], reason: str, delay: float) -> list[RoleDecision]:
        """End all roles that go on; again, where it is to be sooner."""
        left_out = set(but)
        ending = [name for name in self._roles if name not in left_out and (not delay or name not in self._ended)]
        self._ended.update(ending)
        return [(name, EndRole(reason, delay)) for name in ending]


class RolePart(NamedTuple):
    """A role, its settings and its nodes; `ports` name those that commands ask for."""

    role: Role
    spec: RunSpec
    cluster: Cluster
    ports: tuple[str, ...] = ()

    def context(self, context: RunContext) -> RunContext:
        """Give the context of this role."""
        return dataclasses.replace(context, role=self.role, ports=self.ports, first=self.cluster.nodes[0].index)


def parts_of(spec: RunSpec, cluster: Cluster) -> list[RolePart]:
    """Deal the nodes to the roles, in their order. Nodes that a role shares have an agent of their own for it.

    Raise UsageError where there are too few nodes.
    """
    roles = roles_of(spec)
    if not spec.launch.roles:
        return [RolePart(Role(), spec, cluster)]
    fresh = len(cluster)
    parts = []
    for role, places in zip(roles, deal(roles, len(cluster), cluster.source).values(), strict=True):
        nodes = [cluster.nodes[place] for place in places]
        if role.with_:
            nodes = [
                dataclasses.replace(node, index=fresh + at, name=f"{node.name}-{role.name}")
                for at, node in enumerate(nodes)
            ]
            fresh += len(nodes)
        own = dataclasses.replace(cluster, nodes=tuple(nodes))
        parts.append(RolePart(role, spec_of(spec, role), own, ports_of(roles, role.name)))
    return parts
