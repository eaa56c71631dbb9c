"""Straggler watch: asks every so often when ranks called their newest collectives, and says who comes late. Pure.

A rank that seems late is looked at for some seconds, and all ranks are asked again: a straggler is late in both
answers. The first answers of a run show what is usual: unequal work by design is there from the beginning, and is
reported only where something of the node explains it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from allranks.diagnose.devices import device_reason
from allranks.diagnose.stragglers.lateness import (
    ClockEstimate,
    GroupHistory,
    GroupKey,
    Straggler,
    find_straggler,
    lateness,
    middle,
    read_steps,
)
from allranks.diagnose.stragglers.reasons import Reason, find_reason
from allranks.diagnose.stragglers.slow_findings import (
    find_slow_links,
    links_between,
    no_longer_late,
    slow_link_finding,
    slow_rank_finding,
)
from allranks.protocol.messages import CallTimesMessage
from allranks.protocol.orders import MOST_CALLS, CallTimesOrder
from allranks.protocol.run_facts import PlainNote, Stamped, StragglerWait
from allranks.protocol.samples import LinkCount, RankCalls, SuspectLook

from .roster import Roster
from .states import Action, EachSecond, Send

FIRST = 10.0  # seconds from the start of the process groups to the first look
PATIENCE = 45.0  # seconds for the answers: a node gives its own task 40
CALM = 1.5  # times longer until the next look, after one that showed nothing
LONGEST = 2.0  # times the interval: the longest time between looks
SOON = 10.0  # seconds to the next look while something is suspected
AGAIN = 1.5  # times later than when it was found harmless: a rank is suspected once more
UNTIMED = (
    "No slow rank is named: torch does not time the collectives of NCCL. --straggler-timing has it do so, for about "
    "5 µs a collective"
)
KEPT = 60_000  # numbers of all histories of a group: steps times ranks
ASKED = 100_000  # collectives of all ranks in one look
STEPS_KEPT = 2000  # of the run: when it came to which step


@dataclass
class Look:
    """One question to all nodes, and what they have answered so far."""

    asked_at: float
    waiting: set[str]
    suspects: tuple[int, ...] = ()
    calls: dict[int, RankCalls] = field(default_factory=dict)
    clocks: dict[int, ClockEstimate] = field(default_factory=dict)
    looks: dict[int, SuspectLook] = field(default_factory=dict)
    links: list[LinkCount] = field(default_factory=list)


class StragglerWatch:
    """The part of a running gang that watches for slow ranks and links."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self._has_told_untimed = False
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self._look: Look | None = None
        self._next_at: float | None = None
        self._pause = self.roster.spec.limits.straggler_interval
        self._histories: dict[GroupKey, GroupHistory] = {}
        self._fresh: dict[GroupKey, int] = {}
        self._suspect: Straggler | None = None
        self._harmless: dict[int, float] = {}  # lateness of ranks that were late from the start, for no known reason
        self._warned: dict[int, int] = {}  # looks since the last in which the rank was late
        self.late_since: dict[int, float] = {}  # of ranks that were warned of: the time of the change
        self._links: list[LinkCount] | None = None  # counters at the look before
        self._links_at = 0.0
        self._slow_links: dict[tuple[str, str], int] = {}  # looks in a row
        self._warned_links: set[tuple[str, str]] = set()
        self._steps: list[tuple[float, int]] = []
        self._collections: dict[int, int] = {}  # of the garbage collector of each rank, at the look before
        self._measured_t: float | None = None  # until then it is known how much of the time ranks waited

    # -- events ------------------------------------------------------------------------------------

    def on_pace(self, stamped: Stamped[EachSecond], now: float) -> list[Action]:
        """Comes every second, with the step that the run has reached."""
        self._note_step(stamped)
        roster = self.roster
        if not roster.spec.limits.straggler_interval or roster.testing:
            return []
        if self._look is None and self._next_at is not None and now < self._next_at:
            return []
        if self._look is not None and now - self._look.asked_at < PATIENCE:
            return []
        if not self._has_begun():
            return []
        if self._next_at is None:
            self._pause = roster.spec.limits.straggler_interval
            self._next_at = now + min(FIRST, self._pause)
            return []
        if self._look is not None:
            return self._conclude(self._look, now)
        return self._ask((), now)

    def _has_begun(self) -> bool:
        going_on = [rank for rank in self.roster.ranks() if rank.exit is None]
        return len(going_on) > 1 and all(rank.initialised_t is not None for rank in going_on)

    def on_call_times(self, stamped: Stamped[CallTimesMessage], now: float) -> list[Action]:
        """One node's answer; one that was not waited for came too late."""
        look = self._look
        if look is None or stamped.node not in look.waiting:
            return []
        look.waiting.discard(stamped.node)
        answer = stamped.fact
        clock = self.roster.nodes[stamped.node].clock.estimate
        if clock is not None:  # else its times say nothing
            look.calls.update(answer.ranks)
            look.clocks.update(dict.fromkeys(answer.ranks, clock))
            look.looks.update(answer.suspects)
        look.links += answer.links
        if look.waiting:
            return []
        return self._conclude(look, now)

    def _note_step(self, stamped: Stamped[EachSecond]) -> None:
        step = stamped.fact.step
        if step is None or (self._steps and step == self._steps[-1][1]):
            return
        if self._steps and step < self._steps[-1][1]:
            self._steps.clear()
        self._steps.append((stamped.t, step))
        if len(self._steps) > STEPS_KEPT:
            self._steps = self._steps[::2]

    # -- asking ------------------------------------------------------------------------------------

    def _ask(self, suspects: tuple[int, ...], now: float) -> list[Action]:
        running = self.roster.running_ranks()
        count = sum(map(len, running.values()))
        if count < 2:
            self._next_at = now + self._pause
            return []
        most = max(60, min(MOST_CALLS, ASKED // count))
        self._look = Look(now, set(running), suspects)
        return [
            Send(name, CallTimesOrder(ranks, most, tuple(rank for rank in suspects if rank in ranks)))
            for name, ranks in running.items()
        ]

    # -- judging -----------------------------------------------------------------------------------

    def _conclude(self, look: Look, now: float) -> list[Action]:
        self._look = None
        node_of = self.roster.node_of_rank()
        actions = self._judge_links(look, now) + self._tell_untimed(look)
        self._take(look)
        before = self._collections
        self._collections = {rank: calls.collections for rank, calls in look.calls.items()}
        collections = {rank: total - before[rank] for rank, total in self._collections.items() if rank in before}
        straggler = self._find(look, node_of)
        actions += self._notice_recovery(straggler)
        suspect = self._suspect
        self._suspect = None
        if straggler is None or self._is_known(straggler) or self._is_at_slow_link(straggler, node_of):
            self._rest(now, is_calm=not self._slow_links.keys() - self._warned_links)
            return actions + self._measure(look, straggler)
        if suspect is None or suspect.top not in straggler.ranks:
            self._suspect = straggler
            return actions + self._ask((straggler.top, *self._usual_rank(straggler)), now)
        self._rest(now, is_calm=False)
        usual = next((rank for rank in look.suspects if rank not in straggler.ranks), None)
        name = node_of.get(straggler.top, "")
        devices = {node.name: node.devices for node in self.roster.nodes.values()}
        reason = device_reason(straggler.top, name, devices)
        if reason is None:
            reason = find_reason(straggler.top, name, look.looks, usual, collections)
        return actions + self._report(straggler, reason) + self._measure(look, straggler)

    def _tell_untimed(self, look: Look) -> list[Action]:
        """Say once that ranks over NCCL are not compared: torch does not time their collectives."""
        groups = [group for calls in look.calls.values() for group in calls.groups]
        is_timed = any(any(group.duration) for group in groups)
        if self._has_told_untimed or is_timed or not any(group.on_device and group.created for group in groups):
            return []
        self._has_told_untimed = True
        return [self.roster.stamp(PlainNote(UNTIMED))]

    def _measure(self, look: Look, found: Straggler | None) -> list[Action]:
        """Note for the ledger of time how much of it ranks have waited since the look before: for a straggler that
        was reported, else not at all."""
        if not look.calls:
            return []
        t = self.roster.event_t
        since = self._measured_t if self._measured_t is not None else self.roster.initialised_t
        self._measured_t = t
        if since is None or since >= t:
            return []
        share = found.share if found is not None and found.top in self._warned else 0.0
        return [self.roster.stamp(StragglerWait(since, round(share, 4)), t=t)]

    def _take(self, look: Look) -> None:
        """Add the steps of a look to what is known, and keep how late each rank is now."""
        most_ranks = 0
        self._fresh = {}
        for key, (operation, steps) in read_steps(look.calls, look.clocks).items():
            history = self._histories.setdefault(key, GroupHistory())
            newest = history.steps[-1].sequence if history.steps else -1
            self._fresh[key] = sum(step.sequence > newest for step in steps)
            history.add(steps, operation, max(2 * MOST_CALLS // 10, KEPT // max(1, len(steps[-1].late))))
            late = lateness(history.steps)
            if len(late) > most_ranks:
                most_ranks = len(late)
                for rank in self.roster.ranks():
                    if rank.rank in late:
                        rank.lateness = round(late[rank.rank], 4)

    def _find(self, look: Look, node_of: dict[int, str]) -> Straggler | None:
        stragglers = [
            one
            for key, fresh in self._fresh.items()
            if (one := find_straggler(key, self._histories[key], fresh, node_of, look.clocks)) is not None
        ]
        return max(stragglers, key=lambda one: one.share, default=None)

    def _is_known(self, found: Straggler) -> bool:
        """Tell whether it was reported, or found harmless and has not become worse."""
        if found.top in self._warned:
            return True
        harmless = self._harmless.get(found.top)
        return harmless is not None and found.since_t is None and found.late < AGAIN * harmless

    def _is_at_slow_link(self, found: Straggler, node_of: dict[int, str]) -> bool:
        node = node_of.get(found.top, "")
        return any(node in ends for ends in self._slow_links)

    def _usual_rank(self, found: Straggler) -> tuple[int, ...]:
        late = lateness(self._histories[found.key].steps)
        node_of = self.roster.node_of_rank()
        others = [rank for rank in late if rank not in found.ranks]
        apart = [rank for rank in others if node_of.get(rank) != node_of.get(found.top)] or others
        if not apart:
            return ()
        usual = middle(late[rank] for rank in apart)
        return (min(apart, key=lambda rank: (abs(late[rank] - usual), rank)),)

    def _report(self, found: Straggler, reason: Reason | None) -> list[Action]:
        """Warn of a straggler, once; one from the beginning only where its node explains it."""
        if found.since_t is None and (reason is None or not reason.is_of_node):
            self._harmless[found.top] = found.late
            return []
        for rank in found.ranks:
            self._warned[rank] = 0
            if found.since_t is not None:
                self.late_since[rank] = found.since_t
        step = self._step_at(found.since_t) if found.since_t is not None else None
        finding = slow_rank_finding(found, reason, self.roster.node_of_rank(), step)
        return [self.roster.add_finding(finding)]

    def late_since_about(self, t: float, tolerance: float) -> list[int]:
        """Return the ranks that were warned of and came late from within `tolerance` seconds of `t` on, in order."""
        return sorted(rank for rank, since_t in self.late_since.items() if abs(since_t - t) <= tolerance)

    def _step_at(self, t: float) -> int | None:
        """Give the step that the run had reached at a time; None where that is not known."""
        at = bisect_right(self._steps, (t, 1 << 60))
        if not at or at == len(self._steps):
            return None
        (before_t, before), (after_t, after) = self._steps[at - 1 : at + 1]
        return before + round((after - before) * (t - before_t) / max(1e-6, after_t - before_t))

    def _notice_recovery(self, found: Straggler | None) -> list[Action]:
        late = found.ranks if found is not None else ()
        recovered = []
        for rank in list(self._warned):
            self._warned[rank] = 0 if rank in late else self._warned[rank] + 1
            if self._warned[rank] >= 2:
                del self._warned[rank]
                self.late_since.pop(rank, None)
                recovered.append(rank)
        if not recovered:
            return []
        return [self.roster.stamp(PlainNote(no_longer_late(recovered, self.roster.node_of_rank())))]

    # -- links -------------------------------------------------------------------------------------

    def _judge_links(self, look: Look, now: float) -> list[Action]:
        before = self._links
        seconds = now - self._links_at
        self._links = look.links
        self._links_at = now
        if before is None:
            return []
        roster = self.roster
        links = links_between(before, look.links, seconds, roster.node_of_rank(), roster.node_at)
        slow = {(one.sender, one.receiver): one for one in find_slow_links(links)}
        self._slow_links = {ends: self._slow_links.get(ends, 0) + 1 for ends in slow}
        confirmed = [ends for ends, looks in self._slow_links.items() if looks >= 2]
        fresh = [slow[ends] for ends in confirmed if ends not in self._warned_links]
        self._warned_links.update(confirmed)
        if not fresh:
            return []
        return [roster.add_finding(slow_link_finding(fresh))]  # several at one node are one sentence

    def _rest(self, now: float, is_calm: bool) -> None:
        interval = self.roster.spec.limits.straggler_interval
        if is_calm:
            self._next_at = now + self._pause
            self._pause = min(self._pause * CALM, LONGEST * interval)
        else:
            self._pause = interval
            self._next_at = now + min(SOON, interval)
