"""What ranks show while they run: steps, collectives, data. What of it is asked for, and what is written down (IO)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from allranks.diagnose.recorded import newest
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
from allranks.runs.documents import StatusDocument
from allranks.runs.timeledger import newest_steps
from allranks.settings import RunSpec

from .matching import Matching
from .progress import Progress
from .recording import Recording
from .roster import Roster
from .rulewatch import RuleWatch
from .states import Audited, EachSecond, Quiet, Send, State, StepShown

if TYPE_CHECKING:
    from .auditor import Auditor


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
            self.progress.first_step_told = True

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

    def output(self, node: str, stream: Stream, data: bytes, now: float, made_t: float, is_whole: bool) -> None:
        """Look at output that was made at `made_t` (unix seconds); `is_whole` where all before it has come."""
        if self.auditor is not None and is_whole:
            self.auditor.take(stream, data, now)
        if stream.attempt == self._roster.attempt or stream.kind == METRICS:
            self.progress.output(stream, data, now, made_t, self._roster.state_of(node).clock.offset)
        if stream.kind == RANK_LOG:
            if self._ready is not None and not self.has_ready_line and stream.attempt == self._roster.attempt:
                match = self._ready.feed(stream.rank, data)
                self.has_ready_line = match is not None and match.lines > 0
            if self._rules is not None and stream.attempt == self._roster.attempt:
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
        self._note_resumed()
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
        if at is not None and not self.progress.first_step_told:
            self.progress.first_step_told = True
            self._recording.note(FirstStep(round(at - self._roster.began_at, 3)))

    def _note_resumed(self) -> None:
        """Say once where a further attempt goes on."""
        resumed = self.progress.resumed()
        if resumed is not None and self._resumed_attempt != self._roster.attempt:
            self._resumed_attempt = self._roster.attempt
            self._recording.note(resumed)

    def ask_for_counts(self, now: float) -> list[Send]:
        """Give the orders for the numbers of collectives of ranks that show no step."""
        roster = self._roster
        if roster.state is not State.RUNNING or roster.testing or roster.initialised_t is None:
            return []
        if not self.progress.wants_counts(now):
            return []
        return [Send(name, CountersOrder(tuple(ranks))) for name, ranks in roster.running_ranks().items()]

    def look_at_data(self, feed: Callable[[Audited], None]) -> None:
        """Judge what the ranks' first batches say, where that is asked for."""
        if self.auditor is not None and self._roster.state is State.RUNNING:
            self.auditor.look(self._roster.layout(), feed)

    def look_at_rules(self, feed: Callable[[Audited], None]) -> None:
        """Say which rules of --fail-on hold, where there are any."""
        if self._rules is not None and self._roster.state is State.RUNNING and not self._roster.testing:
            self._rules.look(self.progress.by_rank(), time.monotonic())
            found = self._rules.found(self._roster.node_of_rank())
            if found:
                feed(Audited(self._roster.attempt, found))

    # -- what the gang hears -----------------------------------------------------------------------

    def quiet(self) -> Quiet:
        """Say since when no rank has shown anything."""
        return Quiet(max(self._roster.last_sign_at, self.progress.last_activity))

    def pace(self) -> EachSecond:
        """Say how far the slowest rank is."""
        return EachSecond(self.progress.slowest_step())

    def furthest(self) -> tuple[StepShown, float] | None:
        """Say how far the furthest rank is, and when it showed that (unix seconds); None without a step."""
        steps = self.progress.span.seen
        return None if steps is None else (StepShown(steps.furthest), steps.last_t)

    def wait_longer(self, seconds: float, now: float, t: float) -> None:
        """Take it that what was shown while this process did not run comes now."""
        self._roster.last_sign_at = min(self._roster.last_sign_at + seconds, now)
        self.progress.last_activity = min(self.progress.last_activity + seconds, now)
        self.progress.paused(seconds, t)
