"""Standing by: spares are reached and looked at like nodes, and take the place of one at a further attempt. Pure.

What happens to a spare ends nothing: it is a warning, and one spare less. A node whose guard is lost or dead can be
reached anew, with a guard and a node directory of its own, where no spare is there.
"""

from __future__ import annotations

from collections.abc import Mapping

from allranks.cluster import Cluster
from allranks.findings import Finding
from allranks.plan.plan import room_on
from allranks.preflight.judge import judge
from allranks.text import count_of

from .auditing import Auditing
from .members import NodeState
from .places import judge_request, setup_message, ship_message
from .remarks import logs_cut, spare_unused, tree_failed
from .states import (
    SPARE_TABLE,
    Action,
    Event,
    Facts,
    Fault,
    Hello,
    Lost,
    Note,
    Reach,
    Send,
    Shipped,
    Unreachable,
)

NO_ROOM = (28, 122)  # ENOSPC, EDQUOT
READY = "spare"  # the state of a spare that has been looked at and found fit


class Spares(Auditing):
    """Between Hanging and Gathering: nodes without ranks, and who takes whose place."""

    def hear_spare(self, event: Event, now: float) -> list[Action]:
        """What a spare says; what it is not asked is ignored."""
        name = SPARE_TABLE.get(type(event))
        actions: list[Action] = getattr(self, name)(event, now) if name is not None else []
        return actions

    def on_spare_hello(self, event: Hello, now: float) -> list[Action]:
        """First word of its guard, or the word of one that was away."""
        node = self.spares[event.node]
        first = not node.node_dir
        node.node_dir, node.hostname = event.node_dir, event.hostname
        if event.dead:
            return self._drop_spare(node, f"its guard {event.how}")
        actions = self.on_spare_back(event, now)
        if first:
            node.state = "ready"
            return [Note("node-ready", {"node": node.name, "hostname": event.hostname}), self._first_order(node)]
        return actions if node.facts is not None else [*actions, self._first_order(node)]

    def _first_order(self, node: NodeState) -> Send:
        """What a guard is asked first: to take the tree, else to look at the node."""
        tree = self.setting.tree
        if tree is not None and not node.synced:
            return Send(node.name, ship_message(tree))
        return Send(node.name, setup_message(self.spec, self.setting, node.node_dir))

    def _read_shipped(self, event: Shipped) -> Finding | None:
        """What is wrong with the tree that has arrived."""
        tree = self.setting.tree
        error = event.error
        if not error and tree is not None and (event.sha256, event.files) != (tree.sha256, tree.files):
            error = f"{event.files} files ({event.sha256[:12]}) are there, {tree.files} ({tree.sha256[:12]}) were sent"
        return tree_failed(event.node, event.path, error, event.errno in NO_ROOM) if error else None

    def on_spare_shipped(self, event: Shipped, now: float) -> list[Action]:
        """The tree is there: now it is looked at."""
        node, failure = self.spares[event.node], self._read_shipped(event)
        if failure is not None:
            return self._drop_spare(node, failure.message, failure.remedy)
        node.synced = True
        arrived = Note("tree-arrived", {"node": node.name, "path": event.path, "files": event.files})
        return [arrived, self._first_order(node)]

    def on_spare_facts(self, event: Facts, now: float) -> list[Action]:
        """Judged beside the nodes, once those have been."""
        node = self.spares[event.node]
        node.facts = event.facts
        actions: list[Action] = [Note("facts", node.told())]
        if event.error:
            return actions + self._drop_spare(node, event.error, "try the --prelude by hand on the node")
        return actions + self._judge_spares()

    def _judge_spares(self) -> list[Action]:
        """Spares that have been looked at and not judged yet; nothing before the nodes have passed."""
        if self.plan is None:
            return []
        waiting = [n for n in self.spares.values() if n.facts is not None and n.state == "ready"]
        return [action for node in waiting for action in self._judge_spare(node)]

    def _judge_spare(self, node: NodeState) -> list[Action]:
        facts = {n.name: dict(n.facts or {}) for n in (*self.nodes.values(), node)}
        request = judge_request(self.spec, self.setting, self.cluster)
        found = judge(request, facts, self.setting.checks, self.spec.allow)
        failed = next((f for f in found if f.status == "fail"), None)  # the others have passed by themselves
        if failed is not None:
            return self._drop_spare(node, failed.message, failed.remedy)
        room, needs = self.room_of(node), [n.nproc for n in self.plan.nodes] if self.plan is not None else []
        if room is not None and all(need > room for need in needs):
            return self._drop_spare(
                node, f"it has room for {count_of(room, 'rank')}, and every node runs {min(needs)} or more"
            )
        node.state = READY
        return [Note("spare-ready", {"node": node.name})]

    def room_of(self, node: NodeState) -> int | None:
        """Ranks that fit on a node; GPUs count where the other nodes have one for each of their ranks."""
        entry = next(n for n in (*self.cluster.nodes, *self.cluster.spares) if n.name == node.name)
        room = room_on(entry, node.facts or {})
        if entry.slots is not None or room is None or self.plan is None or self.spec.local:
            return entry.slots
        others = [p for p in self.plan.nodes if p.node.name != node.name]
        present = [(p.nproc, room_on(p.node, self.nodes[p.node.name].facts or {})) for p in others]
        return room if all(found is not None and found >= need for need, found in present) else None

    @property
    def ready_spares(self) -> dict[str, int | None]:
        """Spares that can take a place at once, in the order of the list, with the ranks each can run. Before the nodes
        have been judged, those that answer: they will be judged with them."""
        fit = (READY,) if self.plan is not None else (READY, "ready")
        return {n.name: self.room_of(n) for n in self.spares.values() if n.state in fit}

    def _drop_spare(self, node: NodeState, why: str, remedy: str = "") -> list[Action]:
        node.state = "unreachable" if not node.node_dir else "unfit"
        finding = spare_unused(node.name, why, remedy)
        self.findings.append(finding)
        return [Note("finding", finding.to_json())]

    def on_spare_unreachable(self, event: Unreachable, now: float) -> list[Action]:
        """One spare less."""
        return self._drop_spare(self.spares[event.node], event.finding.message, event.finding.remedy)

    def on_spare_fault(self, event: Fault, now: float) -> list[Action]:
        """Its guard has trouble of its own."""
        return self._drop_spare(self.spares[event.node], event.message)

    def on_spare_silent(self, event: Event, now: float) -> list[Action]:
        """It is not ready for a place until it is heard again."""
        node = self.spares[event.node]
        if node.state not in (READY, "ready"):
            return []
        node.state = "silent"
        return [Note("node-silent", {"node": event.node})]

    def on_spare_back(self, event: Event, now: float) -> list[Action]:
        """Heard again, in time."""
        node = self.spares[event.node]
        if node.state != "silent":
            return []
        node.state = "ready"
        return [Note("node-back", {"node": event.node}), *self._judge_spares()]

    def on_spare_lost(self, event: Lost, now: float) -> list[Action]:
        """Silent for the whole lease."""
        node = self.spares[event.node]
        actions = self._drop_spare(node, "nothing was heard from it for the whole lease")
        node.state = "lost"
        return actions

    # -- who takes whose place -----------------------------------------------------------------------

    def _change_nodes(self, replace: Mapping[str, str], pause: float) -> list[Action]:
        """Nodes give their places to spares; one that stands for itself is reached anew, after `pause` seconds."""
        actions: list[Action] = []
        for old, new in replace.items():
            actions += self._reach_anew(self.nodes[old], pause) if new == old else self._stand_in(old, new)
        return actions

    def _stand_in(self, old: str, new: str) -> list[Action]:
        """The same ranks on another node: its place in `nodes` is its node rank."""
        node = self.spares.pop(new)
        node.state = "ready"
        retired = self.retired[old] = self.nodes[old]
        retired.state = retired.state if retired.gone else "replaced"
        self._exchange(old, node)
        entry = next(n for n in self.cluster.spares if n.name == new)
        nodes = tuple(entry if n.name == old else n for n in self.cluster.nodes)
        self.cluster = Cluster(nodes, self.cluster.source, tuple(n for n in self.cluster.spares if n is not entry))
        if self.plan is not None:
            self.plan = self.plan.with_node(old, entry)
        return [Note("node-replaced", {"node": old, "by": new})]

    def _reach_anew(self, old: NodeState, pause: float) -> list[Action]:
        """A node as if it had never been heard of, but for its place."""
        if old.ranks and not old.drained:
            self.findings.append(logs_cut(old.name, old.node_dir, self.attempt - 1))
        self._exchange(old.name, NodeState(old.name, old.index, address=old.address, life=old.life + 1))
        self._asked.pop(old.name, None)
        return [Note("node-anew", {"node": old.name}), Reach(old.name, pause)]

    def _exchange(self, old: str, node: NodeState) -> None:
        self.nodes = {(node.name if name == old else name): (node if name == old else n)
                      for name, n in self.nodes.items()}  # fmt: skip
