"""The ledger of a run's time: into which parts its wall time splits, by its events (pure).

docs/explanation/time-ledger.md says which event begins each part, and which ends it. Each part is measured between
events of its own. None is what the others leave: that is `unaccounted`. A run that goes on and a saved one are read by
the same code, so their ledgers agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.protocol.attempts import AttemptEnd
from allranks.protocol.messages import EndedMessage, ExitMessage, StartedMessage, TemplateMessage
from allranks.protocol.run_facts import (
    AllInitialised,
    AttemptStart,
    EndingBegun,
    Fact,
    FailureNoted,
    HangConcluded,
    HangNoted,
    NodeLost,
    NodesAsked,
    RankEntered,
    RunEnd,
    RunStart,
    Stamped,
    StepsSeen,
    StepsWentOn,
    StragglerWait,
)

from .documents import StatusDocument, TimeLedger

AT_ONCE = 1.0  # seconds in which a lost node ends the ranks: a spare that is lost ends none
NOT_STOPPED = ("failure", "done")  # reasons of an end that no person asked for
SCHEDULER = "scheduler"
PREFLIGHT = "preflight"
IMPORTS = "imports"
RESTART = "restart"
OF_STEPS = ("useful", "computed_twice")  # parts that are not known where no step was seen
PARTS = (
    SCHEDULER,
    PREFLIGHT,
    IMPORTS,
    "start",
    *OF_STEPS,
    "without_steps",
    "hang",
    "after_last_step",
    "teardown",
    RESTART,
)


OfRun = RunStart | NodesAsked | RunEnd | AttemptStart | AttemptEnd
OfAttempt = (
    StartedMessage
    | RankEntered
    | ExitMessage
    | StepsSeen
    | TemplateMessage
    | AllInitialised
    | StragglerWait
    | StepsWentOn
    | HangConcluded
    | HangNoted
    | NodeLost
    | EndedMessage
    | FailureNoted
    | EndingBegun
)
OfTime = OfRun | OfAttempt


class Interval(NamedTuple):
    """A part of the ledger, by its field's name, from `begin` to `end` (unix seconds)."""

    part: str
    begin: float
    end: float


class Standstill(NamedTuple):
    """No rank came further from `since` on, and that was `noticed`; a step `went_on` later, or none did."""

    since: float
    noticed: float
    went_on: float | None = None


class Waits(NamedTuple):
    """Ranks waited `seconds` for stragglers, as measured from `since` to `until` (unix seconds)."""

    since: float
    until: float
    seconds: float


@dataclass
class AttemptTimes:
    """The moments of one attempt, in unix seconds; None where its event has not come."""

    prepared_from: float
    preparation: str  # the part that its preparation is: preflight, or restart
    imports: list[tuple[float, float]] = field(default_factory=list)  # of templates, for which ranks wait
    ranks_started: float | None = None
    has_entered: bool = False
    initialised: float | None = None
    failure: float | None = None  # the first end of a rank that failed
    last_exit: float | None = None
    end_began: float | None = None
    is_stop: bool = False
    clean: float | None = None  # the nodes have ended their ranks
    ended: float | None = None
    is_suite: bool = False
    steps: StepsSeen | None = None
    standstills: list[Standstill] = field(default_factory=list)
    lost: Standstill | None = None  # a node that was silent, and lost
    waits: Waits | None = None
    last_seen: float = 0.0  # the newest that is known of it

    def take(self, fact: OfAttempt, t: float) -> None:
        """Take a fact of the attempt."""
        match fact:
            case StartedMessage():
                self.ranks_started = t if self.ranks_started is None else min(self.ranks_started, t)
            case RankEntered():
                self.has_entered = True
            case ExitMessage() as end:
                self.last_exit = max(self.last_exit or t, t)
                if end.failed_by_itself:
                    self.failure = t if self.failure is None else min(self.failure, t)
            case StepsSeen() as steps:
                self.steps = steps
                t = steps.last_t  # steps may be written down much later
            case TemplateMessage(seconds=seconds):
                if self.ranks_started is None and seconds is not None:
                    self.imports.append((max(self.prepared_from, t - seconds), t))
            case AllInitialised():
                self.initialised = t
            case StragglerWait() as wait:
                self._wait(t, wait)
            case StepsWentOn():
                self.standstills = [
                    standstill if standstill.went_on is not None else standstill._replace(went_on=t)
                    for standstill in self.standstills
                ]
            case HangConcluded(quiet=quiet) | HangNoted(quiet=quiet):
                self.standstills.append(Standstill(t - max(0.0, quiet), t))
            case NodeLost(last_heard=heard):
                if self.end_began is None:
                    self.lost = Standstill(min(heard, t), t)
            case EndedMessage():
                self.clean = max(self.clean or t, t)
            case FailureNoted():
                self._begin_end(t, "failure")
            case EndingBegun(reason=reason):
                self._begin_end(t, reason)
        self.last_seen = max(self.last_seen, t)

    def _begin_end(self, heard: float, reason: str) -> None:
        """Take the moment of what began the end, which is before the controller has heard of it."""
        if self.end_began is not None:
            return
        self.is_stop = reason not in NOT_STOPPED
        happened = heard
        if reason == "done":
            happened = self.last_exit or heard
        elif not self.is_stop:
            happened = self.failure or heard
        self.end_began = min(heard, happened)

    def _wait(self, t: float, wait: StragglerWait) -> None:
        """Add what was measured; time that was measured before does not count again."""
        before = self.waits or Waits(wait.since, wait.since, 0.0)
        since = max(wait.since, before.until)
        if t > since >= 0 and 0 <= wait.share <= 1:
            self.waits = Waits(before.since, t, before.seconds + (t - since) * wait.share)

    def intervals(self, now: float, steps: StepsSeen | None, run_has_steps: bool) -> Iterator[Interval]:
        """Give its parts up to its end, or up to `now` where it goes on. `steps`: its own, or the newest of them."""
        over = now if self.ended is None else self.ended
        over = max(over, self.prepared_from)
        if self.is_suite:
            yield Interval(PREFLIGHT, self.prepared_from, over)
            return
        end_began = over if self.end_began is None else between(self.end_began, self.prepared_from, over)
        if self.is_stop and steps is not None:
            end_began = between(steps.last_t, end_began, over)  # what ranks compute until they have saved is useful
        started = end_began
        if self.ranks_started is not None:
            started = between(self.ranks_started, self.prepared_from, end_began)
        imports = [(since, min(until, started)) for since, until in merged(self.imports) if since < started]
        yield from without(Interval(self.preparation, self.prepared_from, started), imports)
        for since, until in imports:
            yield Interval(IMPORTS, max(since, self.prepared_from), until)
        yield Interval("teardown", end_began, over)
        still = self.still(started, end_began, steps)
        for interval in self.running(started, end_began, steps, run_has_steps):
            yield from without(interval, still)
        for since, until in still:
            yield Interval("hang", since, until)

    def running(self, begin: float, end: float, steps: StepsSeen | None, run_has_steps: bool) -> Iterator[Interval]:
        """Give the parts between the start of the ranks and the beginning of the end, hangs among them."""
        if steps is None and run_has_steps:
            yield Interval("start", begin, end)
        elif steps is None:
            is_starting = self.has_entered and self.initialised is None
            started = end if is_starting else between(self.initialised or begin, begin, end)
            yield Interval("start", begin, started)
            yield Interval("without_steps", started, end)
        else:
            redone_t = steps.redone_t
            if redone_t is None:  # all its steps were computed before, or none
                is_behind = steps.reached is not None and steps.first <= steps.reached
                redone_t = steps.last_t if is_behind else steps.first_t
            first = between(steps.first_t, begin, end)
            last = between(steps.last_t, first, end)
            redone = between(redone_t, first, last)
            yield Interval("start", begin, first)
            yield Interval("computed_twice", first, redone)
            yield Interval("useful", redone, last)
            yield Interval("after_last_step", last, end)

    def still(self, begin: float, end: float, steps: StepsSeen | None) -> list[tuple[float, float]]:
        """Give the times in which no rank came further, in order and apart from one another."""
        spans = []
        for standstill in self.standstills:
            until = standstill.went_on
            if until is None:
                until = end if steps is not None else standstill.noticed
            since = standstill.since
            if steps is not None and steps.last_t < until:
                since = max(since, steps.last_t)  # a step is a sign of life, whatever a hang pattern says
            since = between(since, begin, end)
            spans.append((since, between(until, since, end)))
        if self.lost is not None and self.end_began is not None and abs(self.end_began - self.lost.noticed) <= AT_ONCE:
            since = self.lost.since
            if steps is not None:
                since = max(since, steps.last_t)
            spans.append((between(since, begin, end), end))
        return merged(spans)

    def close_when_clean(self) -> float:
        """Let the attempt end when its ranks had, as another follows on it; return when that was (unix seconds)."""
        over = self.prepared_from if self.ended is None else self.ended
        if self.clean is not None and not self.is_suite:
            over = between(self.clean, self.end_began or self.prepared_from, over)
        self.ended = over
        return over

    def waited(self, intervals: Sequence[Interval]) -> float:
        """Give the seconds of its useful time in which ranks waited for stragglers, as far as that was measured."""
        if self.waits is None or self.waits.until <= self.waits.since:
            return 0.0
        since, until, seconds = self.waits
        useful = sum(
            max(0.0, min(until, interval.end) - max(since, interval.begin))
            for interval in intervals
            if interval.part == "useful"
        )
        return seconds * useful / (until - since)


class Timekeeper:
    """Takes the events of a run as they come, and gives its ledger at any moment."""

    def __init__(self) -> None:
        self.attempts: list[AttemptTimes] = []
        self._begin: float | None = None
        self._boundary = 0.0  # the end of what came before the next attempt
        self._follows: str = PREFLIGHT  # the part that goes on from there
        self.latest = 0.0  # the time of the newest event (unix seconds)
        self._between_attempts: list[Interval] = []

    def take(self, stamped: Stamped[Fact]) -> None:
        """Take a fact; what is not of time is left out."""
        fact, t = stamped.fact, stamped.t
        if not isinstance(fact, OfTime):
            return
        if self._begin is None:
            self._begin = self._boundary = t  # of a damaged log the first fact may be one of an attempt
        if isinstance(fact, OfRun):
            self.latest = max(self.latest, t)
            self._take_of_run(fact, t)
        elif self.is_in_attempt:
            self.latest = max(self.latest, t)
            self.attempts[-1].take(fact, t)

    def ledger(self, now: float, newest: StepsSeen | None = None) -> TimeLedger:
        """Split the time up to `now` (unix seconds). `newest`: steps of the last attempt that no event has yet."""
        begin = now if self._begin is None else self._begin
        now = max(begin, now)
        intervals, slow, has_steps = self._split(begin, now, newest)
        sums = dict.fromkeys(PARTS, 0.0)
        for interval in intervals:
            sums[interval.part] += interval.end - interval.begin
        unaccounted = now - begin - sum(sums.values())
        if slow is not None:
            sums["useful"] -= slow
        rounded = {part: round(max(0.0, seconds), 3) for part, seconds in sums.items()}
        if not has_steps:
            rounded = {part: seconds for part, seconds in rounded.items() if part not in OF_STEPS}
        return TimeLedger(
            wall=round(now - begin, 3),
            unaccounted=round(max(0.0, unaccounted), 3),
            slow_share=None if slow is None else round(slow, 3),
            **rounded,
        )

    @property
    def is_in_attempt(self) -> bool:
        """Whether an attempt goes on."""
        return bool(self.attempts) and self.attempts[-1].ended is None

    def _split(self, begin: float, now: float, newest: StepsSeen | None) -> tuple[list[Interval], float | None, bool]:
        """Give all parts, what of them was waiting for stragglers, and whether any step was seen."""
        has_steps = newest is not None or any(attempt.steps is not None for attempt in self.attempts)
        intervals = list(self._between_attempts)
        slow = None
        for attempt in self.attempts:
            steps = attempt.steps
            if newest is not None and attempt is self.attempts[-1]:
                steps = newest
            parts = list(attempt.intervals(now, steps, has_steps))
            if has_steps and attempt.waits is not None:
                slow = (slow or 0.0) + attempt.waited(parts)
            intervals += parts
        if not self.is_in_attempt:
            intervals.append(Interval(self._follows, self._boundary, now))
        return apart(intervals, begin, now), slow, has_steps

    # -- events between attempts -------------------------------------------------------------------

    def _pass(self, t: float, follows: str) -> None:
        """Close what went on since the last boundary, at `t`, and name what follows."""
        t = max(t, self._boundary)
        self._between_attempts.append(Interval(self._follows, self._boundary, t))
        self._boundary = t
        self._follows = follows

    def _take_of_run(self, fact: OfRun, t: float) -> None:
        match fact:
            case NodesAsked():
                if self.attempts:
                    return
                if self._begin is not None and t < self._begin:
                    self._begin = self._boundary = t  # it is written when the nodes have come
                self._pass(t, SCHEDULER)
            case RunStart():
                if self.is_in_attempt:  # its controller died, and the scheduler has started another
                    self._end_attempt(self.attempts[-1].last_seen)
                    self._follows = SCHEDULER
                self._pass(t, self._preparation)
            case RunEnd():
                if self.is_in_attempt and self.attempts[-1].end_began is None:
                    self._end_attempt(self.attempts[-1].last_seen)  # its controller died: what came then is not known
                    self._boundary = max(t, self._boundary)
                self._end_attempt(t)
                self.latest = t  # a node's clock, corrected under load, may have been ahead of the controller's
                self._pass(t, SCHEDULER)  # what follows on an end is another start by the scheduler
            case AttemptStart():
                self._end_attempt(t)
                if self.attempts and self._follows == "teardown":
                    self._boundary = self.attempts[-1].close_when_clean()
                if self._follows == SCHEDULER:
                    self._pass(t, self._preparation)
                self.attempts.append(AttemptTimes(self._boundary, self._preparation, last_seen=max(t, self._boundary)))
            case AttemptEnd(decision=decision):
                if self.is_in_attempt:
                    self.attempts[-1].is_suite = decision is None
                self._end_attempt(t)

    def _end_attempt(self, t: float) -> None:
        if not self.is_in_attempt:
            return
        attempt = self.attempts[-1]
        attempt.ended = max(t, attempt.prepared_from)
        self._boundary = attempt.ended
        self._follows = "teardown"

    @property
    def _preparation(self) -> str:
        """Name what an attempt begins with: a restart where ranks of the program ran before."""
        ran = any(attempt.ranks_started is not None and not attempt.is_suite for attempt in self.attempts)
        return RESTART if ran else PREFLIGHT


def ledger_of(facts: Iterable[Stamped[Fact]], status: StatusDocument) -> TimeLedger:
    """Give the ledger of a run from all of its facts, up to its end.

    Of a run that has no end yet `status` is newer than the last fact.
    """
    keeper = Timekeeper()
    steps: StepsSeen | None = None
    for stamped in facts:
        keeper.take(stamped)
        if isinstance(stamped.fact, AttemptStart):
            steps = None
        elif isinstance(stamped.fact, StepsSeen):
            steps = stamped.fact
    if not keeper.is_in_attempt:
        return keeper.ledger(keeper.latest)
    newest = None if steps is None else newest_steps(steps, status)
    return keeper.ledger(max(keeper.latest, status.t), newest)


def newest_steps(seen: StepsSeen, status: StatusDocument) -> StepsSeen:
    """Give the steps of the present attempt, where a status tells of further ones than their event."""
    for node in status.nodes:
        for rank in node.ranks:
            if rank.step is None or rank.last_output is None or rank.step <= seen.furthest:
                continue
            last_t = max(seen.last_t, min(rank.last_output, status.t))
            redone_t = seen.redone_t
            if redone_t is None and seen.reached is not None and rank.step >= seen.reached:
                redone_t = last_t  # it came there before, and when was not kept
            seen = seen._replace(furthest=rank.step, last_t=last_t, redone_t=redone_t)
    return seen


# -- intervals -----------------------------------------------------------------------------------------


def between(t: float, least: float, most: float) -> float:
    """Give the nearest time that is not outside of two others."""
    return min(max(t, least), most)


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join spans that overlap, and sort them."""
    joined: list[tuple[float, float]] = []
    for since, until in sorted(spans):
        if joined and since <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(until, joined[-1][1]))
        else:
            joined.append((since, until))
    return joined


def without(interval: Interval, spans: Iterable[tuple[float, float]]) -> Iterator[Interval]:
    """Give what of an interval lies in none of the spans, which are sorted and do not overlap."""
    since = interval.begin
    for begin, end in spans:
        if since < min(begin, interval.end):
            yield interval._replace(begin=since, end=min(begin, interval.end))
        since = max(since, end)
    if since < interval.end:
        yield interval._replace(begin=since)


def apart(intervals: Iterable[Interval], begin: float, end: float) -> list[Interval]:
    """Cut intervals so that they lie between two times and none overlaps another: the earlier one keeps its time."""
    kept = []
    since = begin
    for interval in sorted(intervals, key=lambda interval: (interval.begin, interval.end)):
        cut = interval._replace(begin=max(since, interval.begin), end=min(end, interval.end))
        if cut.begin < cut.end:
            kept.append(cut)
            since = cut.end
    return kept
