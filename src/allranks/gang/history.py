"""What each attempt of a run came to: for the decision on the next one, and for result.json. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from allranks.findings import Verdict
from allranks.protocol.attempts import AttemptEnd, Replacement
from allranks.protocol.run_facts import Fact, Stamped, StepsResumed, of_kind
from allranks.text import join_words

from .gang import Gang
from .policy import Decision, Means, Tried, decide


class History:
    """The attempts of one run, in order; tests before the program are none."""

    def __init__(self) -> None:
        self.attempts: list[AttemptEnd] = []
        self._failed: list[Tried] = []
        self.hopeless = ""  # why another try would fail too, by whomever it is started

    def resume(self, attempts: Iterable[AttemptEnd]) -> None:
        """Take over the attempts of a controller before this one: they count against the retries."""
        for record in attempts:
            self.attempts.append(record)
            verdict = record.verdict
            if record.outcome == "failed" and verdict is not None:
                before = Tried(verdict, record.step, record.seconds or 0.0, left_nodes=bool(record.left_out))
                self._failed.append(before)

    def add(
        self,
        gang: Gang,
        verdict: Verdict | None,
        steps: Mapping[int, int | None],
        now: float,
        against: str,
        resumed: StepsResumed | None = None,
    ) -> tuple[Decision, Verdict | None]:
        """Decide what follows on an attempt; return that, and its verdict with it. `steps` are those by rank,
        `against` is why there can be no further attempt, whatever the cause. `resumed` is where this one went on."""
        if gang.roster.stop_reason:
            outcome = "stopped"
        elif verdict is not None:
            outcome = "failed"
        else:
            outcome = "done"
        decision = Decision("finish")
        if gang.world.has_regrown:
            names = tuple(gang.world.newcomers())
            outcome = "regrown"
            decision = Decision("regrow", f"{join_words(names)} found a place", take_in=names)
            verdict = None
        step = _step(verdict, steps)
        seconds = gang.roster.attempt_seconds(now)
        if verdict is not None and not gang.roster.stop_reason:
            self._failed.append(_tried(gang, verdict, step, seconds))
            decision = self._decide(gang, against)
            self.hopeless = decision.hopeless
            if gang.roster.spec.recovery.retries or decision.leave_out:
                again = "tried again" if decision.kind == "retry" else "not tried again"
                verdict = verdict._replace(decision=f"{again}: {decision.reason}")
            gang.roster.remember_verdict(verdict)
        record = AttemptEnd(
            attempt=gang.roster.attempt,
            outcome=outcome,
            step=step,
            seconds=seconds,
            decision=decision.kind,
            reason=decision.reason,
            replaced=tuple(Replacement(old, new) for old, new in decision.replace.items() if new != old),
            left_out=decision.leave_out,
            taken_in=decision.take_in,
            saved=gang.saving.saved,
        )
        if resumed is not None:
            record = record._replace(first_step=resumed.step, lost_steps=resumed.lost)
        if verdict is not None:
            record = record._replace(cause=verdict.cause, culprit=verdict.finding.where, verdict=verdict)
        self.attempts.append(record)
        return decision, verdict

    def _decide(self, gang: Gang, against: str) -> Decision:
        recovery = gang.roster.spec.recovery
        means = Means(
            recovery.retries,
            recovery.on_hang,
            spares=gang.spares.ready,
            ranks=gang.roster.ranks_by_node,
            asked_spares=recovery.spares,
            node_wait=recovery.node_wait,
            least=gang.roster.spec.target.min_nodes,
            newcomers=tuple(gang.world.newcomers()),
            insists=gang.roster.role.on_failure == "restart",
        )
        decision = decide(self._failed, means)
        if against:
            return Decision("finish", against, hopeless=decision.hopeless)
        self._failed[-1] = replace(self._failed[-1], left_nodes=bool(decision.leave_out))
        return decision


def attempts_of(facts: Iterable[Stamped[Fact]]) -> list[AttemptEnd]:
    """Give the attempts that have been judged; tests before the program are none."""
    return [end.fact for end in of_kind(facts, AttemptEnd) if end.fact.decision is not None]


def _tried(gang: Gang, verdict: Verdict, step: int | None, seconds: float) -> Tried:
    roster = gang.roster
    return Tried(
        verdict,
        step,
        seconds,
        initialised=roster.initialised_t is not None,
        ran=any(r.pid is not None for r in roster.ranks()),
        hung=gang.hang_watch.hang is not None,
        unusable_nodes=roster.unusable_nodes,
        refused=roster.refused_by_check,
        gone=tuple(node.name for node in roster.nodes.values() if node.gone),
        stayed_away=tuple(n.name for n in roster.nodes.values() if n.is_away and n.gone),
    )


def _step(verdict: Verdict | None, steps: Mapping[int, int | None]) -> int | None:
    if verdict is not None and verdict.finding.where.rank is not None:
        step = steps.get(verdict.finding.where.rank)
        if step is not None:
            return step
    return max((step for step in steps.values() if step is not None), default=None)
