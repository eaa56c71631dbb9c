"""Steps, rates and last output of ranks, read from what passes by."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from allranks.protocol.codec import decode_parts
from allranks.protocol.frames import COPIED, METRICS, RANK_LOG, Stream
from allranks.protocol.jsontext import DecodeError, JsonObject, read_metrics
from allranks.protocol.orders import LARGEST_STEP
from allranks.protocol.run_facts import StepsResumed, StepsSeen
from allranks.runs.documents import RankStatus

from .matching import LINE_END, Matching
from .steps import StepFinder, StepSeen

WINDOW = 20  # steps the rate is taken over
COUNTS_EVERY = 10.0  # seconds between questions for the numbers of collectives
COUNTS_AT_FIRST = 2.0  # after the first of them
LINE_LIMIT = 64 << 10
BURST = 3.0  # seconds after a pause in which what has waited arrives
OLDEST = 30.0  # seconds that a line of metrics may be older than its arrival; beyond, the program's own time is wrong


class MetricsEntry(NamedTuple):
    """What of a line of metrics is read: the step, how many there are, and when it was made (unix seconds)."""

    step: int | None = None
    total: int | None = None
    t: float | None = None


class StepSpan:
    """When the steps of an attempt were shown, by any of its ranks: what the ledger of time needs of them."""

    def __init__(self, reached: int | None = None) -> None:
        self._reached = reached  # by the attempts before
        self.seen: StepsSeen | None = None
        self._by_rank: dict[int, int] = {}
        self.stands_still = False  # a hang was noted, and no step came since
        self.went_on_t: float | None = None

    def resume(self, seen: StepsSeen) -> None:
        """Take over what another controller has written down."""
        self.seen = seen
        self._reached = seen.reached

    def note(self, rank: int, step: int, t: float) -> None:
        """Note a step that a rank has shown at `t` (unix seconds); the same again says nothing."""
        if self._by_rank.get(rank) == step:
            return
        self._by_rank[rank] = step
        if self.stands_still:
            self.stands_still = False
            self.went_on_t = t
        before = self.seen
        if before is None:
            redone_t = t if self._reached is not None and step >= self._reached else None
            self.seen = StepsSeen(step, t, step, t, self._reached, redone_t)
            return
        t = max(t, before.last_t)
        redone_t = before.redone_t
        if redone_t is None and self._reached is not None and before.furthest < self._reached <= step:
            # Programs show every tenth step or so: those between are taken to last equally long.
            share = (self._reached - before.furthest) / (step - before.furthest)
            redone_t = before.last_t + share * (t - before.last_t)
        furthest = max(step, before.furthest)
        self.seen = StepsSeen(before.first, before.first_t, furthest, t, self._reached, redone_t)


class StepReader:
    """The step and rate of one rank (steps a second over the last 20); both None until one was read."""

    def __init__(self, late_until: float = 0.0) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._late_until = late_until
        self._rest = b""
        self.step: int | None = None
        self.first: int | None = None
        self.furthest: int | None = None
        self.total: int | None = None

    @property
    def rate(self) -> float | None:
        """Give steps a second."""
        if len(self._steps) < 2:
            return None
        start, first = self._steps[0]
        end, last = self._steps[-1]
        if end > start and last > first:
            return round((last - first) / (end - start), 3)
        return None

    def metrics(
        self, data: bytes, now: float, on_refused: Callable[[str], None], on_row: Callable[[JsonObject], None]
    ) -> list[tuple[int, float]]:
        """Read bytes of the metrics file; return the steps that they held, each with its time by the node's clock.

        `on_row` gets each line, `on_refused` the reason of a wrong one.
        """
        steps = []
        for line in self._lines(data):
            if not line.strip():
                continue
            try:
                row = read_metrics(line, LINE_LIMIT)
                entry = decode_parts(MetricsEntry, row)
            except DecodeError as error:
                on_refused(str(error))
                continue
            on_row(row)
            if entry.step is not None and 0 <= entry.step <= LARGEST_STEP:
                made = entry.t if entry.t is not None else now
                self.note(entry.step, made)
                steps.append((entry.step, made))
                if entry.total is not None and entry.total >= entry.step:
                    self.total = min(entry.total, LARGEST_STEP)
        return steps

    def note(self, step: int, t: float) -> None:
        """Note a step and its time (unix seconds)."""
        if self.step is not None and step < self.step:
            self._steps.clear()  # a restart
        self.step = step
        if self.first is None or self.furthest is None:
            self.first = step
            self.furthest = step
        self.furthest = max(self.furthest, step)
        if t >= self._late_until:
            self._steps.append((t, step))

    def come_late(self, since: float, until: float) -> None:
        """Leave the times of steps that came between two moments out of the rate: they came all at once."""
        self._late_until = until
        kept = [(t, step) for t, step in self._steps if t < since]
        self._steps = deque(kept, maxlen=WINDOW)

    def _lines(self, data: bytes) -> list[bytes]:
        *lines, rest = LINE_END.split(self._rest + data)
        self._rest = rest[-LINE_LIMIT:]
        return lines


class CollectiveCounts:
    """How many collectives a second ranks begin, from the numbers that their agents are asked for."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._questions = 0
        self._counts: dict[int, tuple[float, int]] = {}
        self.rates: dict[int, float] = {}

    def is_due(self, now: float) -> bool:
        """Tell whether to ask again, which is then taken as done."""
        pause = COUNTS_AT_FIRST if self._questions < 2 else COUNTS_EVERY
        if self._asked_at is not None and now - self._asked_at < pause:
            return False
        self._asked_at = now
        self._questions += 1
        return True

    def take(self, rank: int, counters: JsonObject, now: float) -> None:
        """Note a rank's numbers, one a process group and what its recorders say; a rank without a group has none."""
        numbers = [value for value in counters.values() if isinstance(value, int) and value >= 0]
        if not numbers:
            return
        count = sum(numbers)
        at, before = self._counts.get(rank, (now, count))
        if now > at:
            self.rates[rank] = round(max(0, count - before) / (now - at), 3)
        self._counts[rank] = (now, count)


class Progress:
    """One StepReader a rank. Steps come from metrics, from what matches `pattern`, else from what `StepFinder` knows.

    Activity is any output, a carriage return too, or only what matches `recurring`.

    `on_off` hears why one of the two patterns is not matched any more, and which option it is; `on_refused`
    of a source whose data can't be read, and why; `on_row` gets each line of a rank's metrics.
    """

    def __init__(
        self,
        pattern: str | None,
        recurring: str | None,
        on_off: Callable[[str, str], None],
        on_refused: Callable[[str, str], None],
        on_row: Callable[[int, JsonObject], None] = lambda rank, row: None,
    ) -> None:
        self._on_refused = on_refused
        self._on_row = on_row
        self._steps: Matching | None = None
        self._recurring: Matching | None = None
        if pattern:
            self._steps = Matching("--step-pattern", pattern, partial(on_off, "step_pattern"))
        if recurring:
            self._recurring = Matching("--hang-pattern", recurring, partial(on_off, "hang_pattern"))
        self._recognises = pattern is None  # until metrics say better
        self._finders: dict[int, StepFinder] = {}
        self._counts = CollectiveCounts()
        self._readers: dict[int, StepReader] = {}
        self._copied: set[int] = set()  # ranks that have ended, and of which the end of a file came
        self._last_output: dict[int, float] = {}
        self._changed = False
        self._late_until = 0.0
        self.last_activity = 0.0
        self.first_step_at: float | None = None
        self.reached: int | None = None  # by the attempts before
        self.span = StepSpan()
        self.origin: int | None = None  # the first step of the first attempt that showed one

    def begin_attempt(self) -> None:
        """Forget the steps of the attempt before, but for how far it came."""
        steps = (reader.furthest for reader in self._comparable())
        self.came_to(max((step for step in steps if step is not None), default=None))
        if self.origin is None:
            self.origin = self._first()
        self._readers.clear()
        self._copied.clear()
        self._last_output.clear()
        self.span = StepSpan(self.reached)
        self._counts = CollectiveCounts()
        for finder in self._finders.values():
            finder.begin_attempt()

    def paused(self, seconds: float, t: float) -> None:
        """Take it that what was shown meanwhile comes now, `t`: this process did not run for `seconds`."""
        self._late_until = t + BURST
        for reader in self._readers.values():
            reader.come_late(t - seconds, self._late_until)

    def came_to(self, step: int | None) -> None:
        """Keep how far an attempt came."""
        reached = [one for one in (step, self.reached) if one is not None]
        self.reached = max(reached, default=None)

    def resumed(self) -> StepsResumed | None:
        """Where this attempt goes on after those before; None until it shows a step, and in the first."""
        first = self._first()
        if first is None or self.reached is None:
            return None
        starts_over = self.origin is not None and first <= self.origin < self.reached
        step = min(first, self.reached + 1)  # a program that shows every tenth step has done those between
        return StepsResumed(step, self.reached, self.reached + 1 - step, starts_over)

    def slowest_step(self) -> int | None:
        """Give the step of the rank that is behind all others, of those that show one."""
        return min((reader.step for reader in self._comparable() if reader.step is not None), default=None)

    def _first(self) -> int | None:
        firsts = (reader.first for reader in self._comparable())
        return min((first for first in firsts if first is not None), default=None)

    def _comparable(self) -> list[StepReader]:
        """Give readers whose steps mean the same in each attempt: not those that count from 1 in every epoch."""
        relative = {rank for rank, finder in self._finders.items() if not finder.is_absolute}
        return [reader for rank, reader in self._readers.items() if rank not in relative]

    def output(self, stream: Stream, data: bytes, now: float, t: float, ahead: float = 0.0) -> None:
        """Bytes of a rank's log or metrics went by; `now` and `t` as in `Gang.handle`.

        The node's clock is `ahead` of this machine's, in seconds.
        """
        if stream.kind not in (RANK_LOG, METRICS):
            return
        self._last_output[stream.rank] = t
        self._changed = True
        if self._recurring is None:
            self.last_activity = now
        if stream.kind == METRICS:
            on_refused = partial(self._on_refused, f"metrics of rank {stream.rank}")
            steps = self._reader(stream.rank).metrics(data, t, on_refused, partial(self._on_row, stream.rank))
            if steps:
                self._prefer_metrics(stream.rank)
            for step, made in steps:
                corrected = made - ahead
                self._note(stream.rank, step, now, corrected if t - OLDEST <= corrected <= t else t)
            return
        if stream.rank in self._copied or COPIED in data:
            self._copied.add(stream.rank)  # it was written before, and shows no step of now
            return
        if self._recognises:
            if stream.rank not in self._finders:
                self._finders[stream.rank] = StepFinder()
            for seen in self._finders[stream.rank].feed(data, now, t):
                self._recognised(stream.rank, seen)
        if self._steps is not None:
            match = self._steps.feed(stream.rank, data)
            if match is not None and match.number is not None:
                self._reader(stream.rank).note(match.number, t)
                self._note(stream.rank, match.number, now, t)
        if self._recurring is not None:
            match = self._recurring.feed(stream.rank, data)
            if match is None or match.lines:  # what is not looked at may have matched
                self.last_activity = now

    def _reader(self, rank: int) -> StepReader:
        if rank not in self._readers:
            self._readers[rank] = StepReader(self._late_until)
        return self._readers[rank]

    def _prefer_metrics(self, rank: int) -> None:
        """Forget what was recognised in logs: the program says itself how far it is."""
        if self._recognises:
            self._recognises = False
            self._finders.clear()
            self._readers = {rank: self._readers[rank]}
            self.span = StepSpan(self.reached)

    def _recognised(self, rank: int, seen: StepSeen) -> None:
        if seen.is_first and rank in self._readers and self._readers[rank].step is not None:
            self._readers[rank] = StepReader(self._late_until)  # what another source has shown were no steps
            self.span = StepSpan(self.reached)
        reader = self._reader(rank)
        reader.note(seen.step, seen.t)
        reader.total = seen.total
        is_comparable = self.reached is None or self._finders[rank].is_absolute
        self._note(rank, seen.step if is_comparable else None, seen.at, seen.t)

    @property
    def _shows_step(self) -> bool:
        return any(reader.step is not None for reader in self._readers.values())

    def wants_counts(self, now: float) -> bool:
        """Tell whether to ask the nodes for their ranks' numbers of collectives: no rank shows a step."""
        return not self._shows_step and self._counts.is_due(now)

    def counted(self, ranks: Mapping[int, JsonObject], now: float) -> None:
        """Note the numbers of collectives of a node's ranks."""
        for rank, counters in ranks.items():
            self._counts.take(rank, counters, now)
        self._changed = True

    def _note(self, rank: int, step: int | None, now: float, t: float) -> None:
        if self.first_step_at is None:
            self.first_step_at = now
        if step is not None:
            self.span.note(rank, step, t)

    def by_rank(self) -> dict[int, RankStatus]:
        """How far the ranks are that have written anything, or whose collectives were counted."""
        ranks: dict[int, RankStatus] = {}
        rates = {} if self._shows_step else dict(self._counts.rates)
        for rank, t in self._last_output.items():
            reader = self._reader(rank)
            epoch = self._finders[rank].epoch if rank in self._finders else None
            ranks[rank] = RankStatus(
                rank,
                step=reader.step,
                rate=reader.rate,
                last_output=round(t, 3),
                total_steps=reader.total,
                epoch=epoch,
                collectives=rates.pop(rank, None),
            )
        for rank, rate in rates.items():
            ranks[rank] = RankStatus(rank, collectives=rate)
        return ranks

    def changed(self) -> bool:
        """Tell whether anything went by since the last call."""
        changed = self._changed
        self._changed = False
        return changed
