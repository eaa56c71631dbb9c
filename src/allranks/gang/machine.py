"""The gang: one state machine for all nodes of a run, (state, event, now) → actions. Pure.

Nodes gather, the master listens, every node proves that it reaches it, ranks start everywhere, and the
first failure ends all of them. What each event does in each state stands in `states.TABLE`.
"""

from __future__ import annotations

from collections.abc import Mapping

from allranks.diagnose.incident import Pause
from allranks.plan.network import choose_address, no_address, offered, port_taken
from allranks.plan.plan import orders
from allranks.plan.ranks import Attempt, SuiteNodes

from .gathering import Gathering
from .groups import Groups
from .lingering import remark
from .members import RankState
from .places import listen_message, place_for, probe_message
from .remarks import not_shared
from .states import (
    TABLE,
    Action,
    AttemptOver,
    Drained,
    Ended,
    Event,
    Exit,
    Fault,
    Listening,
    Lost,
    Note,
    Paused,
    Probed,
    Send,
    Started,
    State,
    Stop,
    UserSignal,
    exit_fields,
)

END_PATIENCE = 8.0  # seconds a node may take beyond the grace to say that it has ended its ranks
STACKS_PATIENCE = 1.5  # seconds between asking late ranks for their stacks and ending them
DRAIN_PATIENCE = 60.0
TEMPORARY = ("/tmp/", "/var/tmp/", "/dev/shm/")  # what lies there may be gone tomorrow
FENCE = 2.0  # seconds beyond the grace in which a lost node's own guard, if it lives, ends its ranks: lease and beat


class Gang(Groups, Gathering):
    """Decides; the controller acts. Read `state`, `nodes`, `findings`, `exits` after each event."""

    # -- driving -----------------------------------------------------------------------------------

    def begin(self) -> list[Action]:
        """The first actions."""
        start, tree = Note("attempt-start", {"attempt": self.attempt}), self.setting.tree
        if tree is None:
            return [start]
        fields = {"root": tree.root, "files": tree.files, "bytes": tree.bytes, "sha256": tree.sha256}
        return [start, Note("tree", {**fields, "left_out": list(tree.left_out)})]

    def handle(self, event: Event, now: float, t: float) -> list[Action]:
        """What to do about an event. `now` counts seconds of a clock that is never set, and every limit goes by it;
        `t` is unix seconds on the controller's clock, for what is stored."""
        self._t = t
        if event.node in self.retired:
            return []
        if event.node in self.spares:
            return self._remember(self.hear_spare(event, now))
        name = TABLE[self.state].get(type(event))
        if name is None:
            return [Note("note", {"message": f"{type(event).__name__} of {event.node} came out of order"})]
        if name == "ignore":
            return []
        return self._remember(getattr(self, name)(event, now))

    def _remember(self, actions: list[Action]) -> list[Action]:
        requests = (a for a in actions if isinstance(a, Send) and a.message["type"] != "signal")
        self._asked.update((a.node, a.message) for a in requests)
        return actions

    # -- the gate ----------------------------------------------------------------------------------

    def _open_gate(self, now: float) -> list[Action]:
        self.state = State.LISTENING
        self._gate_at = now
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
        seconds = round(now - self._gate_at, 3)
        proved = {"node": self.master.name, "address": choice.address, "port": self.master_port, "seconds": seconds}
        counts = {n.node.name: n.nproc for n in self.plan.nodes} if self.plan is not None else {}
        return [*actions, Note("gate-proved", {**proved, "ranks": counts}), *self._start_ranks()]

    def _start_ranks(self) -> list[Action]:
        assert self.plan is not None
        self.state = State.RUNNING
        tests = SuiteNodes(tuple(self.nodes), self.setting.dead) if self.testing else None
        attempt = Attempt(self.attempt, self.master_addr, self.master_port, self._repeats, tests)
        actions: list[Action] = []
        passing: dict[str, str] = {}
        for planned in self.plan.nodes:
            node = self.nodes[planned.node.name]
            node.state = "running"
            place = place_for(self.spec, self.setting, node, self._interfaces.get(node.name, {}))
            if self.spec.output_dir is None and not place.outputs_here and place.output_dir.startswith(TEMPORARY):
                passing[node.name] = place.output_dir
            actions.append(Send(node.name, orders(self.spec, self.plan, planned, place, attempt, node.facts or {})))
        if self.spec.launcher == "command" and not self.tool and not self.testing:
            for node in self.nodes.values():  # nobody tells of the ranks: one process stands for all of them
                node.ranks = dict(list(node.ranks.items())[:1])
        if passing and not self.testing and not self._outputs_told:
            self._outputs_told = True
            actions.append(Note("outputs-temporary", {"nodes": passing}))
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

    def on_exit(self, event: Exit, now: float) -> list[Action]:
        """A rank ended. 0 is no failure; anything else ends the gang."""
        rank = self.nodes[event.node].ranks.get(event.rank)
        if rank is None or event.attempt != self.attempt or rank.exit is not None:
            return []
        rank.exit, rank.exit_at = event, now
        self._sign_at = now
        self.exits.append(event)
        failed = event.code != 0
        rank.state = ("killed" if event.expected else "failed") if failed else "exited"
        actions: list[Action] = [Note("rank-exit", exit_fields(event, rank.pid))]
        if self.state is not State.RUNNING:
            return actions
        if failed:
            return actions + self._fail(now)
        if all(r.exit is not None for r in self.processes()):
            actions += self._never_joined(now)
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
        self._lost_at.append(now)
        fields = {"node": event.node, "last_heard": event.last_heard, "t": event.t}
        return [Note("node-lost", fields), *self._fail(now)]

    def on_paused(self, event: Paused, now: float) -> list[Action]:
        """This machine slept, or the controller was stopped: what nodes did meanwhile, they did because of it."""
        self.pauses.append(Pause(event.t, event.seconds, event.slept))
        return [Note("launcher-paused", {"seconds": event.seconds, "slept": event.slept, "t": event.t})]

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
        if self.state is State.RUNNING:
            actions = self._watch_departures(now)
            if actions:
                return actions
        if self.state is State.GATHERING and 0 < self._resume_at <= now:
            return self._go_on(now)
        over = now - max(self.attempt_at, self._resume_at) > self.spec.init_timeout
        if not over or self.init_timeout_hit:
            return []
        return self._init_is_late(now) if self.state is State.RUNNING else self._init_is_over(now)

    def _watch_departures(self, now: float) -> list[Action]:
        """Programs that have ended while their processes go on: a failure ends the gang, else it is remarked upon."""
        staying = [r for r in self.ranks() if r.exit is None]
        if any(r.departure.is_overdue(now, self.spec.grace) for r in staying):
            return self._fail(now)
        remarkable = {r.rank: r.departure for r in staying if r.departure.is_remarkable(now)}
        if not remarkable:
            return []
        for departure in remarkable.values():
            departure.remarked = True
        finding = remark(remarkable, {rank: place[0] for rank, place in self.layout().items()})
        self.findings.append(finding)
        return [Note("finding", finding.to_json())]

    def _init_is_late(self, now: float) -> list[Action]:
        """Some wait in init_process_group for others: stacks of those first, then the end."""
        late = [r for r in self.ranks() if r.exit is None and r.initialised_t is None]
        waited_for = [r.rank for r in late if not r.entered] or [r.rank for r in late]
        if not late or not any(r.entered for r in self.ranks()):
            return []
        if self._stacks_at is None:
            self._stacks_at = now
            asked = [(n.name, [r for r in n.ranks if r in waited_for]) for n in self.nodes.values()]
            return [Send(name, {"type": "stacks", "ranks": ranks}) for name, ranks in asked if ranks]
        if now - self._stacks_at < STACKS_PATIENCE:
            return []
        return self._init_is_over(now)

    def _init_is_over(self, now: float) -> list[Action]:
        self.init_timeout_hit = True
        return [Note("init-timeout", {"seconds": round(now - self.attempt_at, 1)}), *self._fail(now)]

    # -- signals for the ranks -----------------------------------------------------------------------

    def on_user_signal(self, event: UserSignal, now: float) -> list[Action]:
        """SIGUSR1 or SIGUSR2 goes to every rank, once."""
        if not self._signal_ways.is_new(event.name, event.source, now):
            return []
        running = [r for r in self.processes() if r.pid is not None and r.exit is None and r.state != "lost"]
        if self.testing or not running:
            return [_not_passed_on(event)]
        order = self._signals_before + len(self._signals) + 1
        message = {"type": "signal", "attempt": self.attempt, "order": order, "name": event.name}
        self._signals.append(message)
        note = Note("signal", {"signal": f"SIG{event.name}", "ranks": len(running), "source": event.source or None})
        return [note, *(Send(n.name, message) for n in self.nodes.values() if not n.gone)]

    def on_early_signal(self, event: UserSignal, now: float) -> list[Action]:
        """Before the ranks run it would have to wait, and then end those that handle it later."""
        return [_not_passed_on(event)] if self._signal_ways.is_new(event.name, event.source, now) else []

    # -- ending ------------------------------------------------------------------------------------

    def _fail(self, now: float) -> list[Action]:
        first: list[Action] = []
        if self.failed_t is None:
            self.failed_t, self.failed_at = self._t, now
            first.append(Note("failed", {"t": self._t}))
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
        started = sum(1 for r in self.ranks() if r.pid is not None and r.exit is None and r.state != "lost")
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
        fenced = any(now < at + self.spec.grace + FENCE for at in self._lost_at)
        if self.spec.retries and not self.stop_reason and fenced:
            return []
        waiting = [n for n in self.nodes.values() if n.node_dir and not n.gone]
        if any(not n.ended for n in waiting) and now < self._end_deadline:
            return []
        if any(n.ended and not n.drained for n in waiting) and now < self._end_deadline + DRAIN_PATIENCE:
            return []
        self.state = State.OVER
        return [AttemptOver(self.attempt)]

    # -- the next attempt --------------------------------------------------------------------------

    def retry(
        self, now: float, t: float, why: str, replace: Mapping[str, str] | None = None, pause: float = 0.0
    ) -> list[Action]:
        """Starts the whole gang again: `retry` after a failure, `repeat` with another port, `train` after the test.

        `replace` maps nodes to the spares that take their places, or to themselves: those are reached anew. Nothing is
        tried for `pause` seconds.
        """
        self._port_tries = self._port_tries + 1 if why == "repeat" else 0
        self._repeats += why != "retry"
        self.testing = self.testing and why != "train"
        self.attempt += 1  # logs are kept apart in either case
        self.attempt_started, self.attempt_at, self._sign_at = t, now, now
        self.initialised_t, self.failed_t, self.failed_at = None, None, None
        self.init_timeout_hit, self._stacks_at, self.refused_by_check = False, None, False
        self.exits, self.faults, self.lost, self._lost_at, self.pauses = [], [], [], [], []
        self._signals = []
        self._signals_before = 0
        self.findings = [f for f in self.findings if f.id == "spare-unused"]
        self.hang, self.watch = None, None
        self._resume_at = now + pause
        actions = [Note("attempt-start", {"attempt": self.attempt}), *self._change_nodes(replace or {}, pause)]
        known = all(n.facts is not None for n in self.nodes.values())
        if known and self.plan is not None and not pause:
            return [*actions, *self._open_gate(now)]
        self.state, self._gather_deadline = State.GATHERING, float("inf")
        for node in self.nodes.values():
            node.ended, node.drained, node.ranks = False, False, {}
            if node.node_dir:  # what it answered while the start was given up was not heard
                node.state = "ready"
                actions += [self._first_order(node)] if node.facts is None else []
        return actions + (self._judge(now) if known and not pause else [])

    def _go_on(self, now: float) -> list[Action]:
        """The pause before a further attempt is over: what waits for nothing else goes on."""
        self._resume_at = 0.0
        if any(n.facts is None for n in self.nodes.values()):
            return []
        return self._judge(now) if self.plan is None else self._gathered_again(now)


def _not_passed_on(event: UserSignal) -> Note:
    where = f"to {event.source}'s task" if event.source else "to the controller"
    return Note("note", {"message": f"SIG{event.name} came {where} while no rank ran: no rank got it"})
