"""Running: ranks start everywhere, report, and end; the first failure ends the gang. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from allranks.diagnose.words import ABORT
from allranks.findings import Finding, Where, place_of
from allranks.plan.environment import NodeLaunch
from allranks.plan.plan import orders
from allranks.plan.ranks import Attempt
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import BoundMessage, ExitMessage, StartedMessage
from allranks.protocol.orders import StacksOrder, SuiteNodes
from allranks.protocol.run_facts import OutputsTemporary, Stamped
from allranks.runs.documents import TEMPORARY
from allranks.settings.failrules import METRIC_RULE

from .ending import Ending
from .groups import ProcessGroups
from .members import linger_remark
from .places import keep_order, place_for
from .roster import Roster
from .saving import Saving
from .states import Action, Audited, Send, State

PEERS_SPEAK = 0.5  # seconds from the abort of a rank in which the others may raise
STACKS_PATIENCE = 1.5  # seconds between asking late ranks for their stacks and ending them


class Running:
    """The phase in which ranks run."""

    def __init__(self, roster: Roster, ending: Ending, saving: Saving) -> None:
        self.roster = roster
        self.ending = ending
        self.saving = saving
        self.groups = ProcessGroups(roster, ending)
        self._stacks_asked_at: float | None = None
        self._peers_may_speak_until: float | None = None
        self._repeats = 0  # attempts that were none of the program's: another port, the tests before it
        self._temporary_outputs_noted = False

    def begin_attempt(self, is_repeat: bool) -> None:
        """Forget the attempt before."""
        self._repeats += is_repeat
        self._stacks_asked_at = None
        self._peers_may_speak_until = None
        self.groups.begin_attempt()

    def start(self, interfaces: Mapping[str, Mapping[str, str]]) -> list[Action]:
        """Every node starts its ranks; `interfaces` are the variables that choose each node's network."""
        roster = self.roster
        assert roster.plan is not None
        roster.state = State.RUNNING
        tests = SuiteNodes(tuple(roster.nodes), roster.context.dead) if roster.testing else None
        attempt = Attempt(
            roster.attempt,
            roster.master_addr,
            roster.master_port,
            repeats=self._repeats,
            tests=tests,
            last_verdict=roster.last_verdict,
            former_world_size=roster.former_world_size,
        )
        actions: list[Action] = []
        if roster.context.keeps_launch:  # one for all, before any starts: it is packed once
            keep = keep_order(roster.spec, roster.context)
            actions += [Send(planned.node.name, keep) for planned in roster.plan.nodes]
        temporary: dict[str, str] = {}
        for planned, node in roster.planned():
            node.state = "running"
            place = place_for(roster.spec, roster.context, node, dict(interfaces.get(node.name, {})))
            is_own = roster.spec.places.output_dir is None and not place.outputs_here
            if is_own and place.output_dir.startswith(TEMPORARY):
                temporary[node.name] = place.output_dir
            launch = NodeLaunch(roster.spec, roster.plan.world_size, planned, place, attempt, node.plan_facts)
            actions.append(Send(node.name, orders(launch)))
        if roster.has_one_process:
            for node in roster.nodes.values():  # nothing reports the ranks: one process stands for all of them
                node.ranks = dict(list(node.ranks.items())[:1])
        if temporary and not roster.testing and not self._temporary_outputs_noted:
            self._temporary_outputs_noted = True
            actions.append(roster.stamp(OutputsTemporary(temporary)))
        return actions

    # -- events ------------------------------------------------------------------------------------

    def on_started(self, stamped: Stamped[StartedMessage], now: float) -> list[Action]:
        """Keep that a rank's process runs."""
        rank = self.roster.nodes[stamped.node].ranks.get(stamped.fact.rank)
        if rank is None or stamped.fact.attempt != self.roster.attempt:
            return []
        rank.start(stamped.fact.pid, stamped.t)
        self.roster.last_sign_at = now
        return [stamped]

    def on_bound(self, stamped: Stamped[BoundMessage], now: float) -> list[Action]:
        """Keep the CPUs that ranks are bound to; warn where they are not those that --bind asks for."""
        fact = stamped.fact
        if not fact.why:
            return [stamped]
        hint = "--bind none, or give the job CPUs of each NUMA node that has a GPU"
        if fact.rule in ("cores", "core-complex"):
            hint = "--bind numa"
        message = f"--bind {fact.rule} does not hold for all ranks of {stamped.node}: {fact.why}"
        finding = Finding("bind", "warn", message, f"hint: {hint}", place_of((stamped.node,)))
        return [stamped, self.roster.add_finding(finding)]

    def on_exit(self, stamped: Stamped[ExitMessage], now: float) -> list[Action]:
        """Record how a rank ended. Any exit code but 0, and any signal, ends the gang."""
        roster = self.roster
        end = stamped.fact
        rank = roster.nodes[stamped.node].ranks.get(end.rank)
        if rank is None or end.attempt != roster.attempt or rank.exit is not None:
            return []
        stamped = stamped._replace(fact=end._replace(pid=rank.pid))
        rank.take_exit(stamped, now)
        roster.last_sign_at = now
        roster.exits.append(stamped)
        actions: list[Action] = [stamped, *self.saving.check(now)]
        if roster.state is not State.RUNNING:
            return actions
        if end.signal == ABORT and self._peers_may_speak_until is None:
            self._peers_may_speak_until = now + PEERS_SPEAK
            actions += self.ending.note_failure(now)
        if end.code != 0:
            return actions + self._fail_when_heard(now)
        if roster.role.ends == "never":
            return [*actions, *self.ending.refuse([self._ended_early(stamped.node, end.rank)], now)]
        if roster.all_have_ended:
            actions += self.groups.judge_end(now)
            return actions + self.ending.end(now, roster.spec.limits.grace, "done")
        return actions

    def _ended_early(self, node: str, rank: int) -> Finding:
        role = self.roster.role.name
        message = f"rank {rank} on {node} ended with code 0, and {role} was to run as long as the others"
        hint = f'Where its end is meant, set ends = "any" in [roles.{role}]'
        remedy = f"see why with `allranks logs --role {role}`. {hint}"
        return Finding("role-ended", "fail", message, remedy, Where(node=node, rank=rank))

    def _fail_when_heard(self, now: float) -> list[Action]:
        """End the gang; where a rank has aborted, after the others have raised or had the time to.

        Gloo aborts the rank that gets a message of another size, and the newest collectives in the error files of the
        others show which rank has sent it (diagnose/hangs/compared.py).
        """
        until = self._peers_may_speak_until
        silent = any(r.exit is None and not r.departure.failed for r in self.roster.ranks())
        if until is not None and now < until and silent:
            return []
        return self.ending.fail(now)

    def on_report(self, stamped: Stamped[ReportMessage], now: float) -> list[Action]:
        """Take a report of how far a rank is."""
        if stamped.fact.event == "saves":
            return self.saving.on_first_call(stamped, now)
        return self.groups.on_report(stamped, now)

    def on_audited(self, stamped: Stamped[Audited], now: float) -> list[Action]:
        """Say at once what the audit found; it stays in the result, and ends the run where the user wants that."""
        if stamped.fact.attempt != self.roster.attempt:
            return []
        findings = self.audit_findings(stamped.fact.findings)
        self.roster.findings += [finding for finding in findings if finding.status != "ok"]
        notes: list[Action] = [self.roster.stamp(finding) for finding in findings]
        if any(finding.status == "fail" for finding in findings):
            return notes + self.ending.fail(now)
        return notes

    def audit_findings(self, findings: Iterable[Finding]) -> list[Finding]:
        """Faults of the data are warnings, unless the user wants them to end the run: a rank may be meant to read what
        others read (tensor and pipeline parallelism), and only the user knows."""
        if self.roster.spec.recovery.on_audit == "stop":
            return list(findings)
        return [f._replace(status="warn") if f.status == "fail" and f.check != METRIC_RULE else f for f in findings]

    def on_tick(self, now: float) -> list[Action]:
        """Time limits while ranks run."""
        if self._peers_may_speak_until is not None:
            return self._fail_when_heard(now)
        actions = self.saving.on_tick(now) or self.groups.on_tick(now) or self._watch_departures(now)
        if actions:
            return actions
        if not self.roster.is_past_init_limit(now):
            return []
        return self._init_is_late(now)

    def _watch_departures(self, now: float) -> list[Action]:
        roster = self.roster
        staying = [r for r in roster.ranks() if r.exit is None]
        if any(r.departure.is_overdue(now, roster.spec.limits.grace) for r in staying):
            return self.ending.fail(now)
        remarkable = {r.rank: r.departure for r in staying if r.departure.is_remarkable(now)}
        if not remarkable:
            return []
        for departure in remarkable.values():
            departure.remarked = True
        return [roster.add_finding(linger_remark(remarkable, roster.node_of_rank()))]

    def _init_is_late(self, now: float) -> list[Action]:
        roster = self.roster
        late = [r for r in roster.ranks() if r.exit is None and r.initialised_t is None]
        if not late or not any(r.entered for r in roster.ranks()):
            return []
        if self._stacks_asked_at is None:
            self._stacks_asked_at = now
            waited_for = [r.rank for r in late if not r.entered] or [r.rank for r in late]
            actions: list[Action] = []
            for node in roster.nodes.values():
                ranks = [r for r in node.ranks if r in waited_for]
                if ranks:
                    actions.append(Send(node.name, StacksOrder(tuple(ranks))))
            return actions
        if now - self._stacks_asked_at < STACKS_PATIENCE:
            return []
        return self.ending.fail_init_timeout(now)
