"""What ranks show while they run: steps, collectives, data. What of it is asked for, and what is written down (IO)."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from allranks.diagnose.recorded import newest
from allranks.findings import Finding, Status, Where
from allranks.protocol.frames import METRICS, RANK_LOG, Stream
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.orders import CountersOrder
from allranks.protocol.run_facts import (
    Fact,
    FirstStep,
    PlainNote,
    Stamped,
    StepsSeen,
    StepsWentOn,
    of_kind,
)
from allranks.runs.documents import RankStatus, StatusDocument
from allranks.runs.timeledger import newest_steps
from allranks.settings import RunSpec
from allranks.settings.failrules import METRIC_RULE, RATE, FailRule, read_rule
from allranks.text import format_duration, format_number

from .matching import Matching
from .progress import Progress
from .recording import Recording
from .roster import Roster
from .states import Audited, Quiet, Send, State

if TYPE_CHECKING:
    from .auditor import Auditor

# -- Rules of --fail-on ------------------------------------------------------------------------------------------------

RATE_STEPS = 20  # over which a rate is taken, and which a rank makes before its rate is compared
UNWRITTEN_STEPS = 100  # of a rank, after which a rule of a metric that no rank has written is warned of
MOST_RATES = 3600  # of a rank, one a second, whose median counts
LOST = ("nan", "inf", "infinity", "-inf", "-infinity")
REMEDY = {
    "": "see what each rank does with `allranks stacks`, or in evidence/stacks of the run",
    RATE: "see `allranks top` and the warnings of the run for the rank that slows it",
}
UNWRITTEN = (
    "write it as a key of JSON lines to $ALLRANKS_OUTPUT_DIR/rank_00_metrics.jsonl, or watch what ranks print with "
    "--fail-on output:PATTERN"
)
OF_VALUE = "go back to the last checkpoint before it, with a lower learning rate or without that batch"


@dataclass
class RankRecord:
    """What one rank has shown for one rule: since which step and when its value is bad, and the last that was good."""

    bad_since: int | None = None
    bad_at: float = 0.0
    good: str = ""
    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_STEPS + 1))
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_RATES))


class RuleWatch:
    """The rules of a run. `found` takes the findings since the last look: one a rule and attempt."""

    def __init__(self, rules: Sequence[str], stops: bool, on_off: Callable[[str], None]) -> None:
        self._rules = [read_rule(text) for text in rules]
        self._stops = stops
        self._matchings = {rule: Matching("--fail-on", rule.pattern, on_off) for rule in self._rules if rule.pattern}
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self._records: dict[tuple[FailRule, int], RankRecord] = {}
        self._moved: dict[int, tuple[int, float]] = {}  # each rank's step, and when it came
        self._said: set[FailRule] = set()
        self._first_steps: dict[int, int] = {}
        self._unwritten: set[FailRule] = set()  # rules that were warned of
        self._found: list[Finding] = []

    def metrics(self, rank: int, row: JsonObject, step: int | None, now: float) -> None:
        """Look at a line of a rank's metrics."""
        for rule in self._rules:
            if rule.name not in ("", RATE) and rule.name in row:
                self._value(rule, rank, row[rule.name], step, now)

    def _value(self, rule: FailRule, rank: int, value: object, step: int | None, now: float) -> None:
        record = self._record(rule, rank)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        is_lost = value is None or str(value).strip().lower() in LOST  # `read_metrics` gives None for nan
        if not (is_number or is_lost):
            return
        shown = "not a number" if is_lost else format_number(float(str(value)))
        is_bad = is_lost if rule.bound is None else is_number and _is_beyond(float(str(value)), rule.sign, rule.bound)
        if not is_bad:
            record.bad_since = None
            record.good = f"the last good {rule.name} of rank {rank} is {shown}{_at(step)}"
            return
        self._bad(rule, rank, record, step, now, f"{rule.name} of rank {rank} is {shown}{_at(step)}")

    def _bad(self, rule: FailRule, rank: int, record: RankRecord, step: int | None, now: float, words: str) -> None:
        """Note a bad value, and say so where it has been bad for long enough."""
        if record.bad_since is None:
            record.bad_since = step or 0
            record.bad_at = now
        has_steps = rule.steps <= 1 or (step or 0) - record.bad_since + 1 >= rule.steps
        if has_steps and now - record.bad_at >= rule.seconds:
            self._say(rule, rank, words, record.good)

    def output(self, rank: int, data: bytes) -> None:
        """Look at what a rank prints."""
        for rule, matching in self._matchings.items():
            match = matching.feed(rank, data)
            if match is not None and match.lines:
                step = self._moved.get(rank, (None, 0.0))[0]
                self._say(rule, rank, f"rank {rank} printed what matches {rule.pattern!r}{_at(step)}", "")

    def look(self, ranks: Mapping[int, RankStatus], now: float) -> None:
        """Look at the steps, once a second. Before its first step, and for some steps after it, nothing is slow."""
        for rank, status in ranks.items():
            if status.step is not None and self._moved.get(rank, (None, 0.0))[0] != status.step:
                self._moved[rank] = (status.step, now)
                self._first_steps.setdefault(rank, status.step)
        for rule in self._rules:
            if rule.of_median:
                for rank, (step, _) in self._moved.items():
                    self._rate(rule, rank, step, now)
            elif rule.name:
                self._warn_where_unwritten(rule)
            elif not rule.pattern and self._moved:
                self._no_step(rule, now)

    def _warn_where_unwritten(self, rule: FailRule) -> None:
        """Warn once of a metric that no rank writes: a loss that is only printed holds no rule."""
        steps = max((step - self._first_steps[rank] for rank, (step, _) in self._moved.items()), default=0)
        if steps < UNWRITTEN_STEPS or rule in self._unwritten or any(known == rule for known, _ in self._records):
            return
        self._unwritten.add(rule)
        words = f"no rank has written a metric {rule.name} in {steps} steps, so --fail-on {rule.text!r} can't hold"
        self._found.append(Finding(METRIC_RULE, "warn", words, UNWRITTEN, check=METRIC_RULE))

    def _no_step(self, rule: FailRule, now: float) -> None:
        newest = max(at for _, at in self._moved.values())
        if now - newest < rule.seconds:
            return
        rank, (step, _) = min(self._moved.items(), key=lambda item: (item[1][0], item[0]))
        words = f"no rank has shown a step for {format_duration(rule.seconds)}, and rank {rank} is{_at(step)}"
        self._say(rule, rank, words, "")

    def _rate(self, rule: FailRule, rank: int, step: int, now: float) -> None:
        record = self._record(rule, rank)
        if not record.steps or record.steps[-1][1] != step:
            record.steps.append((now, step))
        first_at, first = record.steps[0]
        if len(record.steps) <= RATE_STEPS or now <= first_at or rule.bound is None:
            return
        rate = (step - first) / (now - first_at)
        usual = statistics.median(record.rates) if record.rates else rate
        if _is_beyond(rate, rule.sign, rule.bound * usual):
            words = f"rank {rank} makes {format_number(rate)} steps/s{_at(step)}, and usually {format_number(usual)}"
            self._bad(rule, rank, record, step, now, words)
            return
        record.bad_since = None
        record.rates.append(rate)
        record.good = f"rank {rank} made {format_number(rate)} steps/s{_at(step)}"

    def _record(self, rule: FailRule, rank: int) -> RankRecord:
        return self._records.setdefault((rule, rank), RankRecord())

    def _say(self, rule: FailRule, rank: int, words: str, good: str) -> None:
        if rule in self._said:
            return
        self._said.add(rule)
        evidence = (f"--fail-on {rule.text!r} holds", *([good] if good else []))
        status: Status = "fail" if self._stops else "warn"
        remedy = REMEDY.get(rule.name, OF_VALUE)
        if rule.pattern:
            remedy = f"read `allranks logs --rank {rank}`"
        where = Where(rank=rank)
        self._found.append(Finding(METRIC_RULE, status, words, remedy, where, evidence=evidence, check=METRIC_RULE))

    def found(self, nodes: Mapping[int, str]) -> tuple[Finding, ...]:
        """Give what was found since the last call, each with its node."""
        found, self._found = self._found, []
        return tuple(_on_node(finding, nodes) for finding in found)


def _on_node(finding: Finding, nodes: Mapping[int, str]) -> Finding:
    rank = finding.where.rank
    if rank is None or rank not in nodes:
        return finding
    return finding._replace(message=f"{finding.message} (on {nodes[rank]})", where=Where(node=nodes[rank], rank=rank))


def _is_beyond(value: float, sign: str, bound: float) -> bool:
    return value > bound if sign == ">" else value < bound


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


class Observing:
    """Look at what passes by, and say what is worth a line in the log."""

    def __init__(self, spec: RunSpec, roster: Roster, recording: Recording) -> None:
        self._roster = roster
        self._recording = recording
        self.progress = Progress(
            spec.output.step_pattern,
            spec.limits.hang_pattern,
            self._pattern_off,
            recording.undecodable.note,
            self._on_row,
        )
        self._rules: RuleWatch | None = None
        if spec.recovery.fail_on:
            stops = spec.recovery.on_rule == "stop"
            self._rules = RuleWatch(spec.recovery.fail_on, stops, partial(self._pattern_off, "fail_on"))
        kind, _, pattern = roster.role.ready.partition(":")
        self.has_ready_line = False  # a rank has printed what the ready test of the role looks for
        self._ready: Matching | None = None
        if kind == "output":
            self._ready = Matching("ready", pattern, partial(self._pattern_off, "ready"))
        self.auditor: Auditor | None = None  # of the data, where that is asked for
        self.first_step_noted = False
        self._noted_steps: StepsSeen | None = None
        self._resumed_attempt = 0  # the last whose first step was shown

    def remember_former(self, facts: Iterable[Stamped[Fact]], attempt: int) -> None:
        """Know how far the attempts before this one came."""
        for steps in of_kind(facts, StepsSeen):
            if (steps.attempt or 0) < attempt:
                self.progress.came_to(steps.fact.furthest)

    def resume(self, facts: Sequence[Stamped[Fact]], attempt: int, status: StatusDocument) -> None:
        """Go on with an attempt that another controller began: status.json is newer than its last fact."""
        self.remember_former(facts, attempt)
        present = newest(steps for steps in of_kind(facts, StepsSeen) if steps.attempt == attempt)
        if present is not None:
            self.progress.span.resume(newest_steps(present.fact, status))
        for first in of_kind(facts, FirstStep):
            self.progress.first_step_at = self._roster.began_at + first.fact.seconds
            self.first_step_noted = True

    def _pattern_off(self, option: str, why: str) -> None:
        """Go on without a pattern of the user's that is too slow."""
        if option == "hang_pattern":
            self._roster.spec = self._roster.spec.changed(hang_pattern=None)
            why += ". Any output counts as a sign of life"
        self._recording.note(PlainNote(why))

    def _on_row(self, rank: int, row: JsonObject) -> None:
        if self._rules is not None:
            step = row.get("step")
            self._rules.metrics(rank, row, step if isinstance(step, int) else None, time.monotonic())

    def output(self, node: str, stream: Stream, data: bytes, now: float, made_t: float) -> None:
        """Look at output that was made at `made_t` (unix seconds)."""
        if self.auditor is not None:
            self.auditor.take(stream, now)
        if stream.attempt == self._roster.attempt or stream.kind == METRICS:
            self.progress.output(stream, data, now, made_t, self._roster.state_of(node).clock.offset)
        if stream.kind == RANK_LOG:
            is_present = stream.attempt == self._roster.attempt
            if self._ready is not None and not self.has_ready_line and is_present:
                match = self._ready.feed(stream.rank, data)
                self.has_ready_line = match is not None and match.lines > 0
            if self._rules is not None and is_present:
                self._rules.output(stream.rank, data)
            role = self._roster.role.name
            self._recording.view.output(f"{role} {node}" if role else node, stream.rank, data, made_t)
        elif stream.kind == METRICS:
            self._recording.is_changed = True

    def begin_attempt(self) -> None:
        """Forget what the ranks of the attempt before have shown."""
        self.progress.begin_attempt()
        if self._rules is not None:
            self._rules.begin_attempt()
        self.has_ready_line = False

    # -- once a second -----------------------------------------------------------------------------

    def note_steps(self, is_over: bool = False) -> None:
        """Write down when steps were shown: the first, the first that no attempt had reached, and the last."""
        resumed = self.progress.resumed()
        if resumed is not None and self._resumed_attempt != self._roster.attempt:
            self._resumed_attempt = self._roster.attempt
            self._recording.note(resumed)
        span = self.progress.span
        if span.went_on_t is not None:
            self._recording.note(StepsWentOn(), t=span.went_on_t)
            span.went_on_t = None
        noted = self._noted_steps
        shown = span.seen
        if shown is None or shown == noted:
            return
        is_first = noted is None or noted.first_t != shown.first_t
        if is_over or is_first or (noted is not None and noted.redone_t != shown.redone_t):
            self._noted_steps = shown
            self._recording.note(shown)

    def note_first_step(self) -> None:
        """Write down how long the run took to its first step."""
        at = self.progress.first_step_at
        if at is not None and not self.first_step_noted:
            self.first_step_noted = True
            self._recording.note(FirstStep(round(at - self._roster.began_at, 3)))

    def ask_for_counts(self, now: float) -> list[Send]:
        """Give the orders for the numbers of collectives of ranks that show no step."""
        roster = self._roster
        if roster.state is not State.RUNNING or roster.testing or roster.initialised_t is None:
            return []
        if not self.progress.wants_counts(now):
            return []
        return [Send(name, CountersOrder(ranks)) for name, ranks in roster.running_ranks().items()]

    def audit(self, feed: Callable[[Audited], None]) -> None:
        """Judge what the ranks' first batches say, and which rules of --fail-on hold, where there are any."""
        roster = self._roster
        if self.auditor is not None and roster.state is State.RUNNING:
            self.auditor.look(roster.layout(), feed)
        if self._rules is not None and roster.state is State.RUNNING and not roster.testing:
            self._rules.look(self.progress.by_rank(), time.monotonic())
            found = self._rules.found(roster.node_of_rank())
            if found:
                feed(Audited(roster.attempt, found))

    # -- what the gang hears -----------------------------------------------------------------------

    def quiet(self) -> Quiet:
        """Say since when no rank has shown anything."""
        return Quiet(max(self._roster.last_sign_at, self.progress.last_activity))

    def wait_longer(self, seconds: float, now: float, t: float) -> None:
        """Take it that what was shown while this process did not run comes now."""
        self._roster.last_sign_at = min(self._roster.last_sign_at + seconds, now)
        self.progress.last_activity = min(self.progress.last_activity + seconds, now)
        self.progress.paused(seconds, t)
