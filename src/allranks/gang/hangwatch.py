"""Hang watch: notices that nothing moves, takes two stack samples of every rank, and says who is waited for. Pure.

Output and metrics arrive by themselves (`Quiet` says since when there are none). How many collectives the ranks have
called is asked for, four times within the limit: a program that prints nothing moves too.

Where the ranks' process groups give up before the limit, they are looked at in the middle of that time, while all of
them are there, and once more shortly before its end: NCCL's watchdog ends a process without a word on the others. Until
then a rank that works for long may come, as it may without us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from allranks.diagnose.hangs import ras
from allranks.diagnose.hangs.attribute import attribute, out_of_data
from allranks.diagnose.hangs.between_roles import RoleStandstill, between_roles, look_at
from allranks.diagnose.hangs.doing import ActivityKind, Doing, doing, read_sample, waits_for_own_processes
from allranks.diagnose.hangs.links import dead_link, lossy_link, slow_link
from allranks.diagnose.hangs.recorder import read_recording
from allranks.findings import Finding, Hang, place_of
from allranks.protocol.jsontext import JsonObject
from allranks.protocol.messages import CountersMessage, StacksMessage
from allranks.protocol.orders import CountersOrder, StacksOrder
from allranks.protocol.run_facts import HangConcluded, HangNoted, HangSuspected, PlainNote, RoleLooked, Stamped
from allranks.protocol.samples import NO_PY_SPY, StackSample
from allranks.text import one_line, with_reason

from .ending import Ending
from .roster import Roster
from .states import Action, LooksComing, LookWanted, Quiet, RoleSeen, Send

GAP = 4.0  # seconds between the two stack samples: what moves meanwhile does not hang
PATIENCE = 22.0  # seconds for the answers: a node gives its own sampling 20
STARTING = 60.0  # seconds that a program may take until its first sign: it imports torch, from a cold disk
ENDED_GRACE = 30.0  # seconds without a sign after a rank has ended with 0 while others go on
ASKED = 4  # times that the counters are asked for within the limit
MOST_UNASKED = 15.0  # seconds between two questions, so that a hang is noticed so late at most
LEAD = 15.0  # seconds at least from the last look to the end of a process group, and a tenth of its limit
LEAD_SHARE = 0.1
MOST_LEAD_SHARE = 0.25
MOST_LOOKED_AT = 64  # ranks of a role of which another one hears


@dataclass
class Suspicion:
    """One suspected hang: the stack samples by rank, first and second, and NCCL's words (`ras`).

    `again_at`: when the second is taken at the earliest; 0 where nothing is waited for between the two. `is_wanted`:
    another role hears what the ranks do.
    """

    since: float  # the last sign of life
    asked_at: float = 0.0
    waiting: set[str] = field(default_factory=set)  # nodes whose answer has not come
    samples: list[dict[int, StackSample]] = field(default_factory=lambda: [{}])
    sampled_at: list[float] = field(default_factory=list)
    ras: list[str] = field(default_factory=list)
    again_at: float = 0.0
    is_wanted: bool = False

    def complete_sample(self, now: float) -> None:
        """Wait for no further answer to the last question."""
        self.waiting.clear()
        self.sampled_at.append(now)

    @property
    def seconds(self) -> float:
        """The time between the two samples."""
        return self.sampled_at[1] - self.sampled_at[0]

    @property
    def collectives_moved(self) -> bool:
        """Whether a rank has called one between the two samples."""
        first, second = self.samples
        counted = [(first[rank].counted, look.counted) for rank, look in second.items() if rank in first]
        return any(after and before not in ({}, after) for before, after in counted)


class HangWatch:
    """The part of a running gang that watches for hangs."""

    def __init__(self, roster: Roster, ending: Ending) -> None:
        self.roster = roster
        self.ending = ending
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the attempt before."""
        self.hang: Hang | None = None
        self.suspicion: Suspicion | None = None
        self._wanted: Suspicion | None = None  # a look that another role has asked for
        self._coming: set[str] = set()  # roles of which nothing was heard yet
        self._looks: dict[str, RoleLooked] = {}
        self._counters: dict[int, JsonObject] = {}  # of collectives, by rank
        self._counters_asked_at = 0.0
        self._counters_awaited: set[str] = set()  # nodes whose answer has not come
        self._moved_at = 0.0  # when a counter last did
        self._rest_until = 0.0

    # -- events ------------------------------------------------------------------------------------

    def on_quiet(self, stamped: Stamped[Quiet], now: float) -> list[Action]:
        """Comes with every tick; acts once the limit is over."""
        since = max(stamped.fact.since, self._moved_at)
        suspicion = self.suspicion
        if self._wanted is not None:
            return self._look_for_others(self._wanted, since, now)
        if suspicion is None:
            if self._is_suspect(since, now):
                return self._suspect(since, now)
            return self._ask_counters(stamped.fact.since, now)
        if since > suspicion.since:
            self.suspicion = None
            return [self.roster.stamp(PlainNote("ranks go on: no hang"))]
        actions = self._go_on_sampling(suspicion, now)
        if len(suspicion.sampled_at) < 2 or (self._coming and now - suspicion.sampled_at[1] < PATIENCE):
            return actions
        return self._conclude(suspicion, now)

    def _go_on_sampling(self, suspicion: Suspicion, now: float) -> list[Action]:
        """Wait for the answers of a sample, and take the second one in its time."""
        if suspicion.waiting:
            if now - suspicion.asked_at < PATIENCE:
                return []
            suspicion.complete_sample(now)
        is_first = len(suspicion.samples) == 1 and len(suspicion.sampled_at) == 1
        if is_first and now - suspicion.sampled_at[0] >= GAP and now >= suspicion.again_at:
            suspicion.samples.append({})
            return self._ask_stacks(suspicion, now)
        return []

    # -- other roles -------------------------------------------------------------------------------

    def on_look_wanted(self, stamped: Stamped[LookWanted], now: float) -> list[Action]:
        """Look at the ranks for another role; it hears of a look of this role's own."""
        if self.suspicion is not None:
            self.suspicion.is_wanted = True
            return []
        if self._wanted is not None:
            return []
        self._wanted = Suspicion(now, is_wanted=True)
        return self._ask_stacks(self._wanted, now)

    def on_looks_coming(self, stamped: Stamped[LooksComing], now: float) -> list[Action]:
        """Wait for what other roles do, before a suspicion is judged."""
        self._coming = set(stamped.fact.roles)
        self._looks = {}
        return []

    def on_role_seen(self, stamped: Stamped[RoleSeen], now: float) -> list[Action]:
        """Take what the ranks of another role do."""
        self._coming.discard(stamped.fact.role)
        self._looks[stamped.fact.role] = stamped.fact.look
        return []

    def _look_for_others(self, wanted: Suspicion, since: float, now: float) -> list[Action]:
        actions = self._go_on_sampling(wanted, now)
        if len(wanted.sampled_at) < 2:
            return actions
        self._wanted = None
        return [self._tell_look(wanted, since, now)]

    def _tell_look(self, suspicion: Suspicion, since: float, now: float) -> Stamped[RoleLooked]:
        first, second = suspicion.samples
        names = self.roster.node_of_rank()
        looked = [
            look_at(names.get(rank, ""), first.get(rank, look), look, suspicion.seconds, now - since)
            for rank, look in sorted(second.items())[:MOST_LOOKED_AT]
        ]
        return self.roster.stamp(RoleLooked(tuple(looked)))

    def on_counters(self, stamped: Stamped[CountersMessage], now: float) -> list[Action]:
        """Compare the counters with the last ones: what moves is alive. Answers to the controller are not for here."""
        if stamped.node not in self._counters_awaited:
            return []
        self._counters_awaited.discard(stamped.node)
        for rank, counters in stamped.fact.ranks.items():
            if counters and self._counters.get(rank, counters) != counters:
                self._moved_at = now
            if counters:  # none says nothing
                self._counters[rank] = counters
        return []

    def on_stacks(self, stamped: Stamped[StacksMessage], now: float) -> list[Action]:
        """One node's answer; an answer that was not waited for is of a late start, or came too late."""
        suspicion = self._wanted or self.suspicion
        if suspicion is not None and stamped.node in suspicion.waiting:
            suspicion.waiting.discard(stamped.node)
            samples = {rank: read_sample(rank, answer) for rank, answer in stamped.fact.ranks.items()}
            suspicion.samples[-1].update(samples)
            if stamped.fact.ras:
                suspicion.ras.append(stamped.fact.ras)
            if not suspicion.waiting:
                suspicion.complete_sample(now)
        return []

    # -- suspicion -----------------------------------------------------------------------------------

    def _limit(self) -> float:
        """Seconds of silence until the first look; 0 where there shall be none."""
        limit = self.roster.spec.limits.hang_timeout
        if self.roster.group_limit is None:
            return limit
        return min(limit, self.roster.group_limit / 2)

    def _last_look(self, group_limit: float) -> float:
        """Seconds of silence until the second look: as late as the ranks' process groups allow."""
        lead = min(max(LEAD, LEAD_SHARE * group_limit), MOST_LEAD_SHARE * group_limit)
        return min(self.roster.spec.limits.hang_timeout, group_limit - lead)

    def _is_suspect(self, since: float, now: float) -> bool:
        limit = self._limit()
        if not limit or now < self._rest_until or self.roster.testing:
            return False
        ended = [r.exit_at for r in self.roster.ranks() if r.exit is not None and r.exit.fact.code == 0]
        if ended and now - max(since, *ended) >= min(ENDED_GRACE, limit):
            return True
        if self._is_starting(since):
            limit = max(limit, STARTING)
        return now - since >= limit

    def _is_starting(self, since: float) -> bool:
        """Whether ranks may still load torch: none has entered init_process_group, ended, or shown anything."""
        if since > self.roster.last_sign_at:
            return False
        return not any(r.entered or r.initialised_t is not None or r.exit is not None for r in self.roster.ranks())

    def _suspect(self, since: float, now: float) -> list[Action]:
        if any(r.exit is None and r.departure.failed for r in self.roster.ranks()):
            return self.ending.fail(now)  # the exception is known: no stack is needed
        suspicion = Suspicion(since)
        self.suspicion = suspicion
        fact = HangSuspected(round(now - since, 1))
        group_limit = self.roster.group_limit
        if group_limit is not None and self._limit() <= now - since < self.roster.spec.limits.hang_timeout:
            suspicion.again_at = since + self._last_look(group_limit)
            fact = fact._replace(limit=group_limit)
        return [self.roster.stamp(fact), *self._ask_stacks(suspicion, now)]

    def _ask_counters(self, since: float, now: float) -> list[Action]:
        """Ask for the counters where nothing else is seen for a while. A pattern wants its own sign of life."""
        spec = self.roster.spec
        if not spec.limits.hang_timeout or spec.limits.hang_pattern or self.roster.testing:
            return []
        if now - max(since, self._counters_asked_at) < min(self._limit() / ASKED, MOST_UNASKED):
            return []
        if since > self._counters_asked_at:
            self._counters = {}  # of an earlier silence
        self._counters_asked_at = now
        running = self.roster.running_ranks()
        self._counters_awaited = set(running)
        return [Send(name, CountersOrder(ranks)) for name, ranks in running.items()]

    def _ask_stacks(self, suspicion: Suspicion, now: float) -> list[Action]:
        """All nodes for all ranks that run; for their recorders too where it is the last time, or may be."""
        suspicion.asked_at = now
        running = self.roster.running_ranks()
        suspicion.waiting.update(running)
        word = "dump" if suspicion.again_at or len(suspicion.samples) == 2 else "look"
        return [Send(name, StacksOrder(ranks, word)) for name, ranks in running.items()]

    # -- conclusion ----------------------------------------------------------------------------------

    def _conclude(self, suspicion: Suspicion, now: float) -> list[Action]:
        roster = self.roster
        self.suspicion = None
        told = [self._tell_look(suspicion, suspicion.since, now)] if suspicion.is_wanted else []
        if suspicion.collectives_moved:
            return [*told, *self._go_on(suspicion, now)]
        self._rest_until = now + self._limit()
        names = roster.node_of_rank()
        quiet = now - suspicion.since
        hang, at_work = self._attribute(suspicion, names, quiet)
        if hang is None:
            why = at_work or "no rank waits for others: it may be busy"
            return [*told, roster.stamp(PlainNote(f"{why}. It is sampled again later"))]
        if hang.slow or roster.spec.recovery.on_hang == "report":
            noted = roster.stamp(HangNoted(round(quiet, 1), hang))
            return [*told, noted, roster.add_finding(self._hang_finding(hang, names, quiet))]
        self.hang = hang
        return [*told, roster.stamp(HangConcluded(round(quiet, 1), hang)), *self.ending.fail(now)]

    def _go_on(self, suspicion: Suspicion, now: float) -> list[Action]:
        """Drop the suspicion, as collectives go on; a --hang-pattern that has not recurred is a finding."""
        self._moved_at = now
        spec = self.roster.spec
        if spec.limits.hang_pattern is None:
            return [self.roster.stamp(PlainNote("collectives go on: no hang"))]
        self._rest_until = now + spec.limits.hang_timeout
        quiet = f"no log line has matched --hang-pattern {spec.limits.hang_pattern} for {now - suspicion.since:.0f} s"
        remedy = "see what the ranks print with `allranks logs`, or correct the pattern"
        finding = Finding("hang-pattern", "warn", f"{quiet}, but collectives go on", remedy)
        return [self.roster.add_finding(finding)]

    def _attribute(self, suspicion: Suspicion, names: Mapping[int, str], quiet: float) -> tuple[Hang | None, str]:
        roster = self.roster
        first, second = suspicion.samples
        seconds = suspicion.seconds
        running = [r.rank for r in roster.processes() if r.exit is None]
        if roster.spec.launch.launcher != "direct":  # agents answer for all ranks that a launcher has started, too
            running = sorted({*running, *first, *second})
        blind = StackSample(-1, error="its node gave no answer")
        doings = {r: doing(first.get(r, blind), second.get(r, blind), seconds) for r in running}
        recordings = [read_recording(rank, look.recorder) for rank, look in sorted(second.items()) if look.recorder]
        link = dead_link(first, second, names, roster.node_at, quiet)
        link = link or slow_link(first, second, names, seconds)
        hang = link or attribute(
            doings, [end.fact.rank for end in roster.exits if end.fact.code == 0], names, recordings
        )
        if hang is not None:
            hang = out_of_data(hang, doings, names)
            if hang.cause == "unknown" and not hang.culprits:
                hang = lossy_link(first, second, names) or hang
        hang, at_work = between_roles(RoleStandstill(roster.role.name, hang, doings, second, names, quiet), self._looks)
        pids: dict[int, list[int]] = {}
        for rank in roster.ranks():
            pids.setdefault(rank.pid or 0, []).append(rank.rank)
        if hang is None and not at_work and doings and all(map(waits_for_own_processes, doings.values())):
            rank = roster.ranks()[0]
            look = f"`py-spy dump --subprocesses --pid {rank.pid}` on {names[rank.rank]}"
            at_work = f"every rank waits for processes that it has started, whose stacks are not taken. Try {look}"
        if hang is None and not at_work and doings and all(d.kind is ActivityKind.UNKNOWN for d in doings.values()):
            at_work = self._unseen(next(iter(doings.values())))
        ras_lines = ras.evidence(suspicion.ras, pids)
        if hang is None or not ras_lines:
            return hang, at_work
        return hang._replace(evidence=(*hang.evidence[:2], *ras_lines, *hang.evidence[2:])), ""

    def _unseen(self, first: Doing) -> str:
        """Say that nothing is known of what the ranks do."""
        if NO_PY_SPY in first.why:
            note = "no stack of a rank could be taken: `pip install py-spy` in the training's environment shows them"
        else:
            note = with_reason("no stack of a rank could be taken", one_line(first.why, 200))
        if self.roster.spec.launch.launcher == "command":
            note += ". --nproc says how many ranks the script starts on each node"
        return note

    def _hang_finding(self, hang: Hang, names: Mapping[int, str], quiet: float) -> Finding:
        where = place_of([names[r] for r in hang.culprits if r in names], hang.culprits)
        where = where._replace(pid=next((r.pid for r in self.roster.ranks() if r.rank == where.rank), None))
        if hang.nodes:
            where = hang.place
        message = f"no rank has come further for {quiet:.0f} s: {hang.message}"
        return Finding(hang.cause, "warn", message, hang.remedy, where, hang.evidence)
