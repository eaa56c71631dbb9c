"""Gathering: nodes say hello, are sent the tree, are looked at and judged, before the gate opens. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.findings import Finding
from allranks.plan.plan import make_plan
from allranks.preflight.judge import judge

from .members import NodeState, RankState
from .places import judge_request
from .remarks import prelude_failed, too_small, world_size_differs
from .spares import Spares
from .states import (
    Action,
    Event,
    Exit,
    Facts,
    Fault,
    Hello,
    Note,
    Send,
    Shipped,
    Started,
    State,
    Unreachable,
    read_exit,
)

GATHER_PATIENCE = 3.0  # seconds given to the other nodes once one could not be reached


class Gathering(Spares):
    """Between Spares and Gang: from the first word of a guard to the plan, and the words of guards that were away."""

    def on_hello(self, event: Hello, now: float) -> list[Action]:
        """First word of a guard, or the word of one that was away."""
        node = self.nodes[event.node]
        first = not node.node_dir
        node.node_dir, node.hostname = event.node_dir, event.hostname
        if event.dead:
            return self._guard_found_dead(event, now)
        if not first:
            return self._catch_up(node, event, now)
        node.state = "ready"
        ready = Note("node-ready", {"node": node.name, "hostname": event.hostname})
        if self.state is not State.GATHERING:
            return [ready, *self._resend(node)]
        if any(n.state == "unreachable" for n in self.nodes.values()):
            return [ready, *self._check_gathered(now)]
        return [ready, self._first_order(node)]

    def on_shipped(self, event: Shipped, now: float) -> list[Action]:
        """The tree is on a node, as it was sent: now the node is looked at."""
        node = self.nodes[event.node]
        if self.setting.tree is None or node.synced:
            return []
        failure = self._read_shipped(event)
        if failure is not None:
            return self._refuse([failure], now)
        node.synced = True
        note = Note("tree-arrived", {"node": node.name, "path": event.path, "files": event.files})
        if any(n.state == "unreachable" for n in self.nodes.values()):
            return [note]
        return [note, self._first_order(node)]

    def _guard_found_dead(self, event: Hello, now: float) -> list[Action]:
        node = self.nodes[event.node]
        actions = self._catch_up(node, event, now)
        kind = "lease-over" if "lease was over" in event.how else "guard-death"
        if any((f.node, f.id) == (node.name, kind) for f in self.faults):
            return actions
        return [*actions, self.record(Fault(node.name, event.t, kind, event.how)), *self._fail(now)]

    def _catch_up(self, node: NodeState, event: Hello, now: float) -> list[Action]:
        """What happened on a node while nobody listened."""
        actions: list[Action] = []
        if node.state == "silent":
            actions += self.on_back(event, now)
        summary = event.attempt or {}
        if self._adopted and not event.dead and self.state is State.RUNNING:
            actions += self._read_down(node, event, now)
        if summary.get("attempt") != self.attempt:
            return actions + self._resend(node, event.dead)
        for key, found in (summary.get("ranks") or {}).items():
            rank = node.ranks.get(int(key))
            if rank is None:
                continue
            if rank.pid is None and self._adopted and rank.state != "waiting":
                rank.pid = found["pid"]  # told by the controller before us
            elif rank.pid is None:
                actions += self.on_started(Started(node.name, event.t, rank.rank, found["pid"], self.attempt), now)
            if found.get("exit") is not None and rank.exit is None:
                actions += self.on_exit(read_exit(node.name, found["exit"], event.t), now)
        if summary.get("ending") and self.state is State.RUNNING and not event.dead:
            fault = Fault(node.name, event.t, "ended-alone", "ended its ranks without being asked")
            actions += [self.record(fault), *self._fail(now)]
        return actions + self._missed_signals(node, summary) + self._resend(node, dead=True)

    def _missed_signals(self, node: NodeState, summary: Mapping[str, Any]) -> list[Action]:
        """Signals for the ranks that were lost with the old channel."""
        passed_on = int(summary.get("signals") or 0)
        if self._adopted and not self._signals:
            self._signals_before = max(self._signals_before, passed_on)
        return [Send(node.name, message) for message in self._signals if message["order"] > passed_on]

    def _read_down(self, node: NodeState, event: Hello, now: float) -> list[Action]:
        """What the controller before us had not written down any more: a later attempt, ranks, or no start at all."""
        summary = event.attempt or {}
        self.attempt = max(self.attempt, int(summary.get("attempt", 0)))
        numbers = sorted(int(key) for key in summary.get("ranks") or {})
        for rank in numbers:
            node.ranks.setdefault(rank, RankState(rank, rank - numbers[0]))
        if numbers and summary["attempt"] == self.attempt:
            return []
        message = "had not started its ranks when the controller of the run was lost"
        return [self.record(Fault(node.name, event.t, "start-cut", message)), *self._fail(now)]

    def _resend(self, node: NodeState, dead: bool = False) -> list[Action]:
        """Repeats the request that may have been lost with the old channel; `dead`: only that to end."""
        if self.state is State.ENDING and not (node.ended and node.drained):
            return [Send(node.name, {"type": "end", "grace": self._end_grace, "reason": "again"})]
        asked = self._asked.get(node.name, {})
        unanswered = {
            "ship": self.state is State.GATHERING and not node.synced,
            "setup": self.state is State.GATHERING and node.facts is None,
            "listen": self.state is State.LISTENING,
            "probe": self.state is State.PROVING and node.probes is None,
            "start": self.state is State.RUNNING,
        }
        return [Send(node.name, asked)] if not dead and unanswered.get(str(asked.get("type"))) else []

    def on_facts(self, event: Facts, now: float) -> list[Action]:
        """Once every node has been looked at: judge, then open the gate."""
        node = self.nodes[event.node]
        node.facts = event.facts
        actions: list[Action] = [Note("facts", node.told())]
        if event.error:
            return actions + self._look_failed(prelude_failed(node.name, event.error), now)
        if self.refused_by_check:
            return actions + self._check_gathered(now)
        if any(n.facts is None for n in self.nodes.values()) or now < self._resume_at:
            return actions
        return actions + self._judge(now)

    def _look_failed(self, finding: Finding, now: float) -> list[Action]:
        """The others get a moment to say the same: one sentence names them all."""
        self.refused_by_check = True
        self.findings.append(finding)
        self.findings.sort(key=self._place)
        self._gather_deadline = min(self._gather_deadline, now + GATHER_PATIENCE)
        return [Note("finding", finding.to_json()), *self._check_gathered(now)]

    def _judge(self, now: float) -> list[Action]:
        facts = {n.name: dict(n.facts or {}) for n in self.nodes.values()}
        request = judge_request(self.spec, self.setting, self.cluster)
        found = judge(request, facts, self.setting.checks, self.spec.allow)
        failures = [f for f in found if f.status == "fail"]
        checks = self.setting.checks
        actions: list[Action] = [Note("looked", {"checks": len(checks)})] if checks else []
        actions += [Note("finding", f.to_json()) for f in found if f.status != "fail"]
        self.findings += [f for f in found if f.status == "warn"]
        if failures:
            self.refused_by_check = True
            return actions + self._refuse(failures, now)
        if self.plan is not None:
            return actions + self._gathered_again(now)
        self.plan = make_plan(self.spec, self.cluster, facts)
        expected = self.setting.expected_world_size
        if expected is not None and expected != self.plan.world_size:
            actions += self._warn(world_size_differs(expected, self.plan))
        return [*actions, *self._judge_spares(), *self._open_gate(now)]

    def _gathered_again(self, now: float) -> list[Action]:
        """The plan holds: a node that came back must have room for the ranks it had."""
        assert self.plan is not None
        rooms = [(p, self.room_of(self.nodes[p.node.name])) for p in self.plan.nodes]
        small = [too_small(p.node.name, room, p.nproc) for p, room in rooms if room is not None and room < p.nproc]
        if small:
            return self._refuse(small, now)
        return [*self._judge_spares(), *self._open_gate(now)]

    def _warn(self, finding: Finding) -> list[Action]:
        self.findings.append(finding)
        return [Note("finding", finding.to_json())]

    def on_unreachable(self, event: Unreachable, now: float) -> list[Action]:
        """A node that can't be reached ends the start for all; the others are looked at no further."""
        self.nodes[event.node].state = "unreachable"
        self.findings.append(event.finding)
        self.findings.sort(key=self._place)
        self._gather_deadline = min(self._gather_deadline, now + GATHER_PATIENCE)
        return [Note("finding", event.finding.to_json()), *self._check_gathered(now)]

    def _place(self, finding: Finding) -> int:
        """Findings come in the order of the host list, whichever node failed first."""
        node = self.nodes.get(finding.where.node or "")
        return node.index if node is not None else -1

    def _check_gathered(self, now: float) -> list[Action]:
        """With a node that has failed, the others get a moment to fail too: all are named at once."""
        failed = any(n.state == "unreachable" for n in self.nodes.values())
        open_ends = any(n.state == "connecting" for n in self.nodes.values())
        if self.refused_by_check and not failed:
            failed, open_ends = True, any(n.facts is None for n in self.nodes.values())
        if failed and self.state is State.GATHERING and (not open_ends or now >= self._gather_deadline):
            return self._fail(now)
        return []

    def _refuse(self, failures: list[Finding], now: float) -> list[Action]:
        self.findings += failures
        return [*(Note("finding", f.to_json()) for f in failures), *self._fail(now)]

    # -- what Gang does about it -------------------------------------------------------------------

    def _open_gate(self, now: float) -> list[Action]:
        raise NotImplementedError

    def on_back(self, event: Event, now: float) -> list[Action]:
        raise NotImplementedError

    def on_started(self, event: Started, now: float) -> list[Action]:
        raise NotImplementedError

    def on_exit(self, event: Exit, now: float) -> list[Action]:
        raise NotImplementedError
