"""Looks whether a rule of --fail-on holds, at the metrics, steps and output of ranks as they come."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from allranks.findings import Finding, Status, Where
from allranks.protocol.jsontext import JsonObject
from allranks.runs.documents import RankStatus
from allranks.settings.failrules import METRIC_RULE, RATE, FailRule, read_rule
from allranks.text import format_duration, format_number

from .matching import Matching

RATE_STEPS = 20  # over which a rate is taken, and which a rank makes before its rate is compared
MOST_RATES = 3600  # of a rank, one a second, whose median counts
LOST = ("nan", "inf", "infinity", "-inf", "-infinity")
REMEDY = {
    "": "see what each rank does with `allranks stacks`, or in evidence/stacks of the run",
    RATE: "see `allranks top` and the warnings of the run for the rank that slows it",
}
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
        self._found: list[tuple[int, Finding]] = []

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
        for rule in self._rules:
            if rule.of_median:
                for rank, (step, _) in self._moved.items():
                    self._rate(rule, rank, step, now)
            elif not rule.name and not rule.pattern and self._moved:
                self._no_step(rule, now)

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
        found = Finding(METRIC_RULE, status, words, remedy, where, evidence=evidence, check=METRIC_RULE)
        self._found.append((rank, found))

    def found(self, nodes: Mapping[int, str]) -> tuple[Finding, ...]:
        """Give what was found since the last call, each with its node."""
        found = [
            finding._replace(
                message=f"{finding.message} (on {nodes[rank]})" if rank in nodes else finding.message,
                where=Where(node=nodes.get(rank), rank=rank),
            )
            for rank, finding in self._found
        ]
        self._found.clear()
        return tuple(found)


def _is_beyond(value: float, sign: str, bound: float) -> bool:
    return value > bound if sign == ">" else value < bound


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"
