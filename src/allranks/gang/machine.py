"""The gang: one state machine for all nodes of a run, (state, event, now) → actions. Pure.

Nodes gather, the master listens, every node proves that it reaches it, ranks start everywhere, and the
first failure ends all of them. What each event does in each state stands in `states.TABLE`.
"""

from __future__ import annotations

from allranks.findings import Finding
from allranks.plan.interfaces import addresses
from allranks.plan.network import choose_address, no_address, offered, port_taken
from allranks.plan.plan import make_plan, orders
from allranks.plan.ranks import Attempt
from allranks.plan.testing import arguments
from allranks.preflight.judge import judge

from .hanging import Hanging
from .members import NodeState, RankState
from .places import judge_request, listen_message, place_for, probe_message, setup_message, ship_message
from .remarks import not_shared, prelude_failed, tree_failed, world_size_differs
from .states import (
    TABLE,
    Action,
    AttemptOver,
    Drained,
    Ended,
    Event,
    Exit,
    Facts,
    Fault,
    Hello,
    Listening,
    Lost,
    Note,
    Probed,
    Report,
    Send,
    Shipped,
    Started,
    State,
    Stop,
    Unreachable,
    exit_fields,
    read_exit,
)

END_PATIENCE = 8.0  # seconds a node may take beyond the grace to say that it has ended its ranks
GATHER_PATIENCE = 3.0  # seconds given to the other nodes once one could not be reached
STACKS_PATIENCE = 1.5  # seconds between asking late ranks for their stacks and ending them
DRAIN_PATIENCE = 60.0
NO_ROOM = (28, 122)  # ENOSPC, EDQUOT


class Gang(Hanging):
    """Decides; the controller acts. Read `state`, `nodes`, `findings`, `exits` after each event."""

    # -- driving -----------------------------------------------------------------------------------

    def begin(self) -> list[Action]:
        """The first actions."""
        start, tree = Note("attempt-start", {"attempt": 0}), self.setting.tree
        if tree is None:
            return [start]
        fields = {"root": tree.root, "files": tree.files, "bytes": tree.bytes, "sha256": tree.sha256}
        return [start, Note("tree", {**fields, "left_out": list(tree.left_out)})]

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do about an event; `now` is unix seconds on the controller's clock."""
        name = TABLE[self.state].get(type(event))
        if name is None:
            return [Note("note", {"message": f"{type(event).__name__} of {event.node} came out of order"})]
        if name == "ignore":
            return []
        actions: list[Action] = getattr(self, name)(event, now)
        self._asked.update((a.node, a.message) for a in actions if isinstance(a, Send))
        return actions

    # -- gathering ---------------------------------------------------------------------------------

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
        tree = self.setting.tree
        return [ready, Send(node.name, ship_message(tree)) if tree is not None else self._setup(node)]

    def _setup(self, node: NodeState) -> Send:
        return Send(node.name, setup_message(self.spec, self.setting, node.node_dir))

    def on_shipped(self, event: Shipped, now: float) -> list[Action]:
        """The tree is on a node, as it was sent: now the node is looked at."""
        node, tree = self.nodes[event.node], self.setting.tree
        if tree is None or node.synced:
            return []
        error = event.error
        if not error and (event.sha256, event.files) != (tree.sha256, tree.files):
            error = f"{event.files} files ({event.sha256[:12]}) are there, {tree.files} ({tree.sha256[:12]}) were sent"
        if error:
            failure = tree_failed(node.name, event.path, error, event.errno in NO_ROOM)
            return self._refuse([failure], now)
        node.synced = True
        note = Note("tree-arrived", {"node": node.name, "path": event.path, "files": event.files})
        if any(n.state == "unreachable" for n in self.nodes.values()):
            return [note]
        return [note, self._setup(node)]

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
        return actions + self._resend(node, dead=True)

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
        actions: list[Action] = [Note("facts", {"node": node.name, "addresses": addresses(event.facts)})]
        if event.error:
            self.refused_by_check = True
            return actions + self._refuse([prelude_failed(node.name, event.error)], now)
        if any(n.facts is None for n in self.nodes.values()):
            return actions
        return actions + self._judge(now)

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
        self.plan = make_plan(self.spec, self.cluster, facts)
        expected = self.setting.expected_world_size
        if expected is not None and expected != self.plan.world_size:
            actions += self._warn(world_size_differs(expected, self.plan))
        return actions + self._open_gate(now)

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
        """With a node that can't be reached, the others get a moment to fail too: all are named at once."""
        failed = any(n.state == "unreachable" for n in self.nodes.values())
        open_ends = any(n.state == "connecting" for n in self.nodes.values())
        if failed and self.state is State.GATHERING and (not open_ends or now >= self._gather_deadline):
            return self._fail(now)
        return []

    def _refuse(self, failures: list[Finding], now: float) -> list[Action]:
        self.findings += failures
        return [*(Note("finding", f.to_json()) for f in failures), *self._fail(now)]

    # -- the gate ----------------------------------------------------------------------------------

    def _open_gate(self, now: float) -> list[Action]:
        self.state = State.LISTENING
        self._gate_t = now
        assert self.plan is not None
        for planned in self.plan.nodes:
            node = self.nodes[planned.node.name]
            node.state, node.probes, node.ended, node.drained = "ready", None, False, False
            ranks = range(planned.first_rank, planned.first_rank + planned.nproc)
            node.ranks = {r: RankState(r, r - planned.first_rank) for r in ranks}
        counts = {n.node.name: n.nproc for n in self.plan.nodes}
        plan = Note("plan", {"world_size": self.plan.world_size, "ranks": counts})
        return [plan, Send(self.master.name, listen_message(self.spec, self._token()))]

    def _token(self) -> str:
        return f"{self.setting.token}/{self.attempt}/{self._port_tries}"

    def on_listening(self, event: Listening, now: float) -> list[Action]:
        """The port is open on the master: everybody tries every address it could be reached at."""
        if event.error is not None:
            return self._refuse([port_taken(self.master.name, event.error)], now)
        self.master_port = event.port
        self.state = State.PROVING
        addresses = self._offers()
        if not addresses:
            return self._refuse([no_address(self.spec, self.master.name)], now)
        message = probe_message(self.spec, addresses, event.port, self._token())
        note = Note("gate-listening", {"node": self.master.name, "addresses": addresses, "port": event.port})
        return [note, *(Send(name, message) for name in self.nodes)]

    def _offers(self) -> list[str]:
        if self.spec.master_addr:
            return [self.spec.master_addr]
        facts = {n.name: n.facts or {} for n in self.nodes.values()}
        found = [o.address for o in offered(facts, self.master.name, self.spec.network)]
        return found[:1] if self.spec.local else found  # virtual nodes share the loopback: nothing to choose

    def on_probed(self, event: Probed, now: float) -> list[Action]:
        """When every node has answered: the best address that all reach, or who does not reach which."""
        self.nodes[event.node].probes = event.results
        actions: list[Action] = []
        if not event.shared:
            actions += self._warn(not_shared(event.node, self.master.name, self.spec.output_dir or ""))
        if any(n.probes is None for n in self.nodes.values()):
            return actions
        facts = {n.name: n.facts or {} for n in self.nodes.values()}
        probes = {n.name: n.probes or () for n in self.nodes.values()}
        choice = choose_address(self.spec, self.master.name, self.master_port, facts, probes)
        actions += [Note("finding", f.to_json()) for f in choice.findings if f.status != "fail"]
        self.findings += [f for f in choice.findings if f.status == "warn"]
        failures = [f for f in choice.findings if f.status == "fail"]
        if failures or choice.address is None:
            return actions + self._refuse(failures, now)
        self.master_addr = choice.address
        self._interfaces = {name: dict(env) for name, env in choice.environment.items()}
        seconds = round(now - self._gate_t, 3)
        proved = {"node": self.master.name, "address": choice.address, "port": self.master_port, "seconds": seconds}
        counts = {n.node.name: n.nproc for n in self.plan.nodes} if self.plan is not None else {}
        return [*actions, Note("gate-proved", {**proved, "ranks": counts}), *self._start_ranks()]

    def _start_ranks(self) -> list[Action]:
        assert self.plan is not None
        self.state = State.RUNNING
        tests = arguments(self.spec, self.nodes, self.setting.dead) if self.testing else ()
        attempt = Attempt(self.attempt, self.master_addr, self.master_port, self._repeats, tests)
        actions: list[Action] = []
        for planned in self.plan.nodes:
            node = self.nodes[planned.node.name]
            node.state = "running"
            place = place_for(self.spec, self.setting, node, self._interfaces.get(node.name, {}))
            actions.append(Send(node.name, orders(self.spec, self.plan, planned, place, attempt, node.facts or {})))
        if self.spec.launcher != "direct" and not self.testing:
            for node in self.nodes.values():  # one process a node stands for all of its ranks
                node.ranks = dict(list(node.ranks.items())[:1]) if self.spec.launcher == "command" else node.ranks
        return actions

    # -- running -----------------------------------------------------------------------------------

    def on_started(self, event: Started, now: float) -> list[Action]:
        """A rank's process runs."""
        rank = self.nodes[event.node].ranks.get(event.rank)
        if rank is None or event.attempt != self.attempt:
            return []
        rank.pid = event.pid
        if rank.state == "waiting":
            rank.state = "started"
        return [Note("rank-started", {"node": event.node, "rank": event.rank, "pid": event.pid, "t": event.t})]

    def on_report(self, event: Report, now: float) -> list[Action]:
        """A rank has entered or left init_process_group, or has destroyed its group."""
        rank = self.nodes[event.node].ranks.get(event.rank)
        if rank is None:
            return []
        if event.what in ("init-entered", "destroyed"):
            rank.entered, rank.departed_t = True, event.t if event.what == "destroyed" else None
            what = "rank-entered" if rank.departed_t is None else "rank-departed"
            return [Note(what, {"node": event.node, "rank": event.rank, "t": event.t})]
        if event.what != "initialised" or rank.initialised_t is not None:
            return []
        rank.initialised_t = event.t
        if rank.exit is None:
            rank.state = "initialised"
        actions: list[Action] = [Note("rank-initialised", {"node": event.node, "rank": event.rank, "t": event.t})]
        times = [r.initialised_t for r in self.ranks()]
        if self.initialised_t is None and all(t is not None for t in times):
            self.initialised_t = max(t for t in times if t is not None)
            seconds = round(self.initialised_t - self.started, 3)
            actions.append(Note("all-initialised", {"seconds": seconds, "ranks": len(times), "t": self.initialised_t}))
        return actions

    def on_exit(self, event: Exit, now: float) -> list[Action]:
        """A rank ended. 0 is no failure; anything else ends the gang."""
        rank = self.nodes[event.node].ranks.get(event.rank)
        if rank is None or event.attempt != self.attempt or rank.exit is not None:
            return []
        rank.exit = event
        self.exits.append(event)
        failed = event.code != 0
        rank.state = ("killed" if event.expected else "failed") if failed else "exited"
        actions: list[Action] = [Note("rank-exit", exit_fields(event, rank.pid))]
        if self.state is not State.RUNNING:
            return actions
        if failed:
            return actions + self._fail(now)
        if all(r.exit is not None for r in self.processes()):
            return actions + self._end(now, self.spec.grace, "done")
        return actions

    def on_fault(self, event: Fault, now: float) -> list[Action]:
        """A guard's own trouble ends the gang."""
        return [self.record(event), *self._fail(now)]

    def on_silent(self, event: Event, now: float) -> list[Action]:
        """Several beats are missing."""
        node = self.nodes[event.node]
        if node.gone:
            return []
        node.state = "silent"
        return [Note("node-silent", {"node": event.node})]

    def on_back(self, event: Event, now: float) -> list[Action]:
        """It is heard again, in time."""
        node = self.nodes[event.node]
        if node.state != "silent":
            return []
        node.state = "running" if self.state in (State.RUNNING, State.ENDING) else "ready"
        return [Note("node-back", {"node": event.node})]

    def on_lost(self, event: Lost, now: float) -> list[Action]:
        """The lease of a node is over: its guard, if it lives, ends its ranks now; so do we elsewhere."""
        node = self.nodes[event.node]
        node.state = "lost"
        for rank in node.ranks.values():
            rank.state = "lost"
        self.lost.append(event)
        fields = {"node": event.node, "last_heard": event.last_heard, "t": event.t}
        return [Note("node-lost", fields), *self._fail(now)]

    def on_stop(self, event: Stop, now: float) -> list[Action]:
        """The user wants it to end; a second call can only be shorter."""
        if self.state is State.OVER:
            return []
        self.stop_reason = self.stop_reason or event.reason
        return [Note("stop-asked", {"reason": event.reason}), *self._end(now, event.grace, event.reason)]

    def on_tick(self, event: Event, now: float) -> list[Action]:
        """Time limits."""
        if self.state is State.ENDING:
            return self._check_ended(now)
        if self.state is State.GATHERING and now >= self._gather_deadline:
            return self._check_gathered(now)
        over = now - self.attempt_started > self.spec.init_timeout
        if not over or self.init_timeout_hit:
            return []
        return self._init_is_late(now) if self.state is State.RUNNING else self._init_is_over(now)

    def _init_is_late(self, now: float) -> list[Action]:
        """Some wait in init_process_group for others: stacks of those first, then the end."""
        late = [r for r in self.ranks() if r.exit is None and r.initialised_t is None]
        waited_for = [r.rank for r in late if not r.entered] or [r.rank for r in late]
        if not late or not any(r.entered for r in self.ranks()):
            return []
        if self._stacks_t is None:
            self._stacks_t = now
            asked = [(n.name, [r for r in n.ranks if r in waited_for]) for n in self.nodes.values()]
            return [Send(name, {"type": "stacks", "ranks": ranks}) for name, ranks in asked if ranks]
        if now - self._stacks_t < STACKS_PATIENCE:
            return []
        return self._init_is_over(now)

    def _init_is_over(self, now: float) -> list[Action]:
        self.init_timeout_hit = True
        return [Note("init-timeout", {"seconds": round(now - self.attempt_started, 1)}), *self._fail(now)]

    # -- ending ------------------------------------------------------------------------------------

    def _fail(self, now: float) -> list[Action]:
        first: list[Action] = [Note("failed", {"t": now})] if self.failed_t is None else []
        self.failed_t = now if self.failed_t is None else self.failed_t
        if self.state is State.ENDING:
            return first + self._check_ended(now)  # the time that a stop gave to save holds
        return first + self._end(now, self.spec.grace, "failure")

    def _end(self, now: float, grace: float, reason: str) -> list[Action]:
        """Asks every node to end its ranks; again with a shorter grace where one is running already."""
        again = self.state is State.ENDING
        if self.state is State.OVER or (again and now + grace >= self._end_deadline - END_PATIENCE):
            return []
        self.state = State.ENDING
        self._end_grace = grace
        self._end_deadline = now + grace + END_PATIENCE
        message = {"type": "end", "grace": grace, "reason": reason}
        started = sum(1 for r in self.ranks() if r.pid is not None and r.exit is None)
        actions: list[Action] = [Note("ending", {"reason": reason, "grace": grace, "ranks": started})]
        for node in self.nodes.values():
            if node.node_dir and not node.gone:
                actions.append(Send(node.name, message))
        return actions + self._check_ended(now)

    def on_ended(self, event: Ended, now: float) -> list[Action]:
        """A node has nothing left, or says what it could not end."""
        node = self.nodes[event.node]
        if node.ended or (self.state is State.RUNNING and event.attempt != self.attempt):
            return []
        node.ended, node.left, node.state = True, event.left, "ended"
        actions: list[Action] = [Note("node-clean", {"node": event.node, "left": list(event.left), "t": event.t})]
        if event.reason == "lease":
            fault = Fault(node.name, event.t, "lease-over", "ended its ranks: its lease was over")
            actions.append(self.record(fault))
        return actions + (self._fail(now) if self.state is State.RUNNING else self._check_ended(now))

    def on_drained(self, event: Drained, now: float) -> list[Action]:
        """All its output is here."""
        node = self.nodes[event.node]
        node.drained, node.outputs = True, event.outputs
        return self._check_ended(now)

    def _check_ended(self, now: float) -> list[Action]:
        waiting = [n for n in self.nodes.values() if n.node_dir and not n.gone]
        if any(not n.ended for n in waiting) and now < self._end_deadline:
            return []
        if any(n.ended and not n.drained for n in waiting) and now < self._end_deadline + DRAIN_PATIENCE:
            return []
        self.state = State.OVER
        return [AttemptOver(self.attempt)]

    # -- the next attempt --------------------------------------------------------------------------

    def retry(self, now: float, why: str) -> list[Action]:
        """Starts the whole gang again: `retry` after a failure, `repeat` with another port, `train` after the test."""
        self._port_tries = self._port_tries + 1 if why == "repeat" else 0
        self._repeats += why != "retry"
        self.testing = self.testing and why != "train"
        self.attempt += 1  # logs are kept apart in either case
        self.attempt_started, self.initialised_t, self.failed_t = now, None, None
        self.init_timeout_hit, self._stacks_t = False, None
        self.exits, self.faults, self.lost, self.findings = [], [], [], []
        self.hang, self.watch = None, None
        return [Note("attempt-start", {"attempt": self.attempt}), *self._open_gate(now)]
