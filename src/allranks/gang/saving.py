"""Saving: all ranks save at one step, before the end and where it is asked for. Pure.

A rank that calls `allranks.should_save(step)` says so once. A request to save then goes three ways to every node:

    asked      each node answers with the newest steps of its ranks
    proposed   a step that all are still to come to; a rank that comes to it waits there. Each node answers whether one
               was past it already: then a later step is proposed
    agreed     none was past it: `should_save` returns True there, on every rank

A rank acts on an agreed step alone, so ranks that are ahead and words that are late cost a further proposal and no
checkpoint of two different steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from allranks.protocol.attempts import SavedStep
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import RankSaving, SavingMessage
from allranks.protocol.orders import SaveOrder
from allranks.protocol.run_facts import SaveAgreed, SaveAsked, SaveDone, Stamped, StopAsked
from allranks.text import group

from .ending import Ending
from .roster import Roster
from .states import Action, Send, State

FRESH = 5.0  # seconds that the answers to a proposal hold: ranks wait twice as long at it (program.py)
MARGINS = (2, 8, 32, 128, 512, 2048)  # steps from the furthest rank to the proposed one, by how many were overtaken
MOST_PROPOSALS = 12
LOOKED_AHEAD = 1000  # steps among which one is sought that every rank comes to
RECENT = 10.0  # seconds in which a stop asks for no other save
# Of the time that a stop gives, kept for SIGTERM where ranks have not saved by then: a third, this much at most.
KEPT_BACK = 5.0


@dataclass
class SaveRound:
    """A request to save, from the first word to the last rank that goes on after it."""

    number: int
    began_at: float
    phase: str = "asked"
    step: int = 0
    proposals: int = 0
    overtaken: int = 0  # proposals that a rank was past already
    proposed_at: float = 0.0
    awaited: set[str] = field(default_factory=set)  # nodes that have not answered the last word
    ranks: dict[int, RankSaving] = field(default_factory=dict)
    saved: SavedStep | None = None  # once all ranks have


@dataclass(frozen=True)
class StopAfterSave:
    """An orderly stop that waits for the ranks to save. `save_until` and `ends_at` by the clock of the limits."""

    reason: str
    save_until: float
    ends_at: float


class Saving:
    """The part of the running phase that is about saving."""

    def __init__(self, roster: Roster, ending: Ending) -> None:
        self.roster = roster
        self.ending = ending
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self._requests = 0
        self._round: SaveRound | None = None
        self._wanted = False  # before a rank could be asked
        self.callers: set[int] = set()  # ranks that call should_save
        self._saved_before: SavedStep | None = None  # by the request before
        self._stop: StopAfterSave | None = None
        self._over_at: float | None = None  # when the last round was over

    @property
    def saved(self) -> SavedStep | None:
        """The step at which ranks of this attempt have saved last, and how many of them."""
        if self._round is None:
            return None
        return _saved_so_far(self._round) or self._saved_before

    @property
    def is_over(self) -> bool:
        """Whether the last request has been met."""
        return self._round is not None and self._round.saved is not None

    # -- requests ----------------------------------------------------------------------------------

    def ask(self, now: float, reason: str) -> list[Action]:
        """Begin a request, unless one is under way. Until a rank calls should_save it is kept."""
        roster = self.roster
        if roster.testing or roster.state is not State.RUNNING:
            return []
        if self._round is not None and self._round.saved is None:
            return []
        if not self.callers and not roster.is_adopted:
            self._wanted = True
            return []
        self._saved_before = self.saved
        self._requests += 1
        self._round = SaveRound(self._requests, now)
        return [self.roster.stamp(SaveAsked(reason)), *self._say(self._round)]

    def on_first_call(self, stamped: Stamped[ReportMessage], now: float) -> list[Action]:
        """Take note that a rank calls should_save: from now on it can be asked."""
        self.callers.add(stamped.fact.rank)
        if not self._wanted:
            return []
        self._wanted = False
        return self.ask(now, "asked for before")

    def missed(self, node: str) -> list[Action]:
        """Repeat the last word to a node, which may have been lost with its old channel."""
        if self._round is None or self._round.saved is not None or self.roster.state is not State.RUNNING:
            return []
        return self._send(self._round, [node])

    def _say(self, round_: SaveRound) -> list[Action]:
        nodes = [n.name for n in self.roster.nodes.values() if n.is_there]
        round_.awaited = set(nodes)
        return self._send(round_, nodes)

    def _send(self, round_: SaveRound, nodes: Iterable[str]) -> list[Action]:
        places = self.roster.node_of_rank()
        ranks = group(places, places.__getitem__)
        order = SaveOrder(self.roster.attempt, round_.number, round_.phase, round_.step)
        return [Send(name, order._replace(ranks=tuple(ranks.get(name, ())))) for name in nodes]

    # -- answers -----------------------------------------------------------------------------------

    def on_answer(self, stamped: Stamped[SavingMessage], now: float) -> list[Action]:
        """Take a node's answer, or what has changed there since."""
        round_ = self._round
        answer = stamped.fact
        if round_ is None or (answer.attempt, answer.request) != (self.roster.attempt, round_.number):
            return []
        round_.ranks.update(answer.ranks)
        if (answer.phase, answer.step) == (round_.phase, round_.step):
            round_.awaited.discard(stamped.node)
        if round_.phase == "agreed":
            return self.check(now)
        if round_.awaited or self.roster.state is not State.RUNNING:
            return []
        return self._go_on(round_, now)

    def _go_on(self, round_: SaveRound, now: float) -> list[Action]:
        """All nodes have answered: agree on the step, or propose one."""
        callers = list(self._callers(round_))
        if not callers or any(saving.calls < 2 for saving in callers):
            return []  # which steps a rank calls at shows with its second call, and its agent says so
        is_fresh = now - round_.proposed_at < FRESH
        is_ahead = not any(is_past(saving, round_.step) for saving in callers)
        is_last = round_.proposals >= MOST_PROPOSALS
        if round_.phase == "proposed" and ((is_fresh and is_ahead) or is_last):
            round_.phase = "agreed"
            return [self.roster.stamp(SaveAgreed(round_.step, len(callers), round_.proposals)), *self._say(round_)]
        is_another = round_.phase == "proposed"
        round_.overtaken += is_another and not is_ahead
        margin = MARGINS[min(round_.overtaken, len(MARGINS) - 1)]
        above = None
        if is_another:
            above = round_.step
        round_.phase = "proposed"
        round_.step = choose_step(callers, margin, above)
        round_.proposals += 1
        round_.proposed_at = now
        return self._say(round_)

    def _callers(self, round_: SaveRound) -> Iterator[RankSaving]:
        ended = {end.fact.rank for end in self.roster.exits}
        for rank, saving in round_.ranks.items():
            if saving.calls > 0 and rank not in ended:
                yield saving

    def check(self, now: float) -> list[Action]:
        """See whether all ranks have saved and went on, or ended after it."""
        round_ = self._round
        if round_ is None or round_.phase != "agreed" or round_.saved is not None:
            return []
        if not all(saving.is_back for saving in self._callers(round_)):
            return []
        saved = _saved_so_far(round_)
        if saved is None:
            return []
        round_.saved = saved
        self._over_at = now
        done = SaveDone(saved, round(now - round_.began_at, 3))
        return [self.roster.stamp(done), *self._stop_now(now)]

    # -- stops -------------------------------------------------------------------------------------

    def on_stop(self, stamped: Stamped[StopAsked], now: float) -> list[Action]:
        """End the ranks, after they have saved where they can be asked to; a second stop can only be shorter."""
        reason, grace = stamped.fact
        if self._stop is not None:
            ends_at = min(self._stop.ends_at, now + grace)
            save_until = min(self._stop.save_until, _save_until(now, ends_at))
            self._stop = StopAfterSave(self._stop.reason, save_until, ends_at)
            return [stamped, *self.on_tick(now)]
        recently = self._over_at is not None and now - self._over_at < RECENT
        if not self.callers or grace <= 0 or recently:
            return self.ending.on_stop(stamped, now)
        self.roster.stop_reason = self.roster.stop_reason or reason
        ends_at = now + grace
        self._stop = StopAfterSave(reason, _save_until(now, ends_at), ends_at)
        return [stamped, *self.ask(now, reason)]

    def on_tick(self, now: float) -> list[Action]:
        """End the ranks once the time that a stop gives to save is over."""
        if self._stop is None or now < self._stop.save_until:
            return []
        return self._stop_now(now)

    def _stop_now(self, now: float) -> list[Action]:
        stop = self._stop
        if stop is None or self.roster.state is not State.RUNNING:
            return []
        return self.ending.end(now, round(max(0.0, stop.ends_at - now), 1), stop.reason)


def _save_until(now: float, ends_at: float) -> float:
    return ends_at - min(KEPT_BACK, max(0.0, ends_at - now) / 3)


def _saved_so_far(round_: SaveRound) -> SavedStep | None:
    steps = {rank: saving.saved for rank, saving in round_.ranks.items() if saving.saved is not None}
    if not steps:
        return None
    step = round_.step
    if step not in steps.values():
        step = min(steps.values(), key=lambda one: (-list(steps.values()).count(one), one))
    others = {str(rank): one for rank, one in steps.items() if one != step}
    callers = sum(1 for saving in round_.ranks.values() if saving.calls > 0)
    return SavedStep(step, len(steps) - len(others), callers, others)


def is_past(saving: RankSaving, step: int) -> bool:
    """Whether a rank is beyond a proposed step; one that waits there has not."""
    return saving.last > step or (saving.last == step and not saving.holds)


def choose_step(callers: Collection[RankSaving], margin: int, above: int | None = None) -> int:
    """Choose a step that all ranks are still to come to, `margin` calls beyond the furthest, and one `above` another.

    A rank that calls every k steps comes to its own alone: the next step that fits the last two calls of all ranks,
    else the next one at all.

    >>> every, tenth = RankSaving(50, 49, 48), RankSaving(5, 40, 30)
    >>> choose_step([every], 2), choose_step([every, tenth], 2)
    (51, 70)
    """
    strides = {saving: max(1, saving.last - saving.before) for saving in callers}
    widest = max(strides.values())
    first = max(saving.last for saving in callers) + margin * widest
    if above is not None:
        first = max(first, above + 1)
    leader = next(saving for saving, stride in strides.items() if stride == widest)
    first += (leader.last - first) % widest
    for step in range(first, first + LOOKED_AHEAD * widest, widest):
        if all((step - saving.last) % stride == 0 for saving, stride in strides.items()):
            return step
    return first
