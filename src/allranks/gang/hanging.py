"""Hanging: notices that nothing moves any more, looks twice at every rank, and says who is waited for. Pure.

Output and metrics arrive by themselves (`Quiet` says since when there are none). How many collectives the ranks have
called is asked for, four times within the limit: a program that prints nothing moves too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from allranks.diagnose.hangs import ras
from allranks.diagnose.hangs.attribute import Hang, attribute
from allranks.diagnose.hangs.doing import Look, doing, read_look
from allranks.diagnose.hangs.recorder import read_recording
from allranks.findings import Finding, Where

from .remarks import moved_by_look
from .roster import Roster
from .states import Action, Counters, Note, Quiet, Send, Stacks

GAP = 4.0  # seconds between the two looks: what moves meanwhile does not hang
PATIENCE = 22.0  # seconds for the answers: a node gives its own look 20
ENDED_GRACE = 30.0  # seconds without a sign after a rank has ended with 0 while others go on
ASKED = 4  # times that the counters are asked for within the limit


@dataclass
class Watch:
    """One suspicion. `since`: the last sign of life; `looks`: by rank, first and second; `ras`: NCCL's words."""

    since: float
    asked: float
    waiting: set[str]
    looks: list[dict[int, Look]] = field(default_factory=lambda: [{}])
    looked: list[float] = field(default_factory=list)
    ras: list[str] = field(default_factory=list)


@dataclass
class Pulse:
    """The collectives' counters: when they were asked for, when they were last seen to move, what they said."""

    asked: float = 0.0
    moved: float = 0.0
    counted: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def feel(self, rank: int, counted: Mapping[str, Any], now: float) -> None:
        """A rank's numbers; none says nothing."""
        if counted and self.counted.get(rank, counted) != counted:
            self.moved = now
        if counted:
            self.counted[rank] = counted


class Hanging(Roster):
    """Between Roster and Gang: the part of the decisions that is about hangs."""

    watch: Watch | None = None
    hang: Hang | None = None
    pulse: Pulse | None = None
    _rest_until = 0.0

    def on_quiet(self, event: Quiet, now: float) -> list[Action]:
        """Comes with every tick; acts once the limit is over."""
        pulse = self.pulse = self.pulse or Pulse()
        watch, since = self.watch, max(event.since, pulse.moved)
        if watch is None:
            return self._suspect(since, now) if self._is_suspect(since, now) else self._feel(event.since, now)
        if since > watch.since:
            self.watch = None
            return [Note("note", {"message": "ranks go on: no hang"})]
        if watch.waiting and now - watch.asked < PATIENCE:
            return []
        if watch.waiting:
            self._looked(now)
        if len(watch.looked) == 1 and now - watch.looked[0] >= GAP and not watch.waiting and len(watch.looks) == 1:
            watch.looks.append({})
            return self._ask(watch, now)
        return self._conclude(watch, now) if len(watch.looked) == 2 else []

    def _is_suspect(self, since: float, now: float) -> bool:
        limit = self.spec.hang_timeout
        if not limit or now < self._rest_until or self.testing:
            return False
        ended = [r.exit_at for r in self.ranks() if r.exit is not None and r.exit.code == 0]
        if ended and now - max(since, *ended) >= min(ENDED_GRACE, limit):
            return True
        return now - since >= limit

    def _suspect(self, since: float, now: float) -> list[Action]:
        if any(r.exit is None and r.departure.failed for r in self.ranks()):
            return self._fail(now)  # what it died of is known: nothing has to be looked at
        watch = self.watch = Watch(since, now, set())
        return [Note("hang-suspected", {"quiet": round(now - since, 1)}), *self._ask(watch, now)]

    def _feel(self, since: float, now: float) -> list[Action]:
        """Asks for the counters where nothing else is seen for a while. A pattern wants its own sign of life."""
        pulse, limit = self.pulse, self.spec.hang_timeout
        assert pulse is not None
        if not limit or self.spec.hang_pattern or self.testing or now - max(since, pulse.asked) < limit / ASKED:
            return []
        if since > pulse.asked:
            pulse.counted = {}  # of an earlier silence
        pulse.asked = now
        return [Send(name, {"type": "counters", "ranks": ranks}) for name, ranks in self._running().items()]

    def on_counters(self, event: Counters, now: float) -> list[Action]:
        """What moves is alive."""
        for rank, counted in event.ranks.items():
            if self.pulse is not None:
                self.pulse.feel(rank, counted, now)
        return []

    def _running(self) -> dict[str, list[int]]:
        """The ranks that run, by node."""
        found = {n.name: [r.rank for r in n.ranks.values() if r.pid is not None and r.exit is None]
                 for n in self.nodes.values() if not n.gone}  # fmt: skip
        return {name: ranks for name, ranks in found.items() if ranks}

    def _ask(self, watch: Watch, now: float) -> list[Action]:
        """All nodes for all ranks that run; the second time for their recorders too."""
        watch.asked, running = now, self._running()
        watch.waiting.update(running)
        word = "look" if len(watch.looks) == 1 else "dump"
        return [Send(name, {"type": "stacks", "ranks": ranks, "ask": word}) for name, ranks in running.items()]

    def on_stacks(self, event: Stacks, now: float) -> list[Action]:
        """One node's answer; an answer that nobody waits for is of a late start, or came too late."""
        watch, looks = self.watch, {rank: read_look(rank, found) for rank, found in event.ranks.items()}
        moved = [look for look in looks.values() if look.moved]
        if watch is None or event.node not in watch.waiting:
            return self._moved_by_us(moved, now)
        watch.waiting.discard(event.node)
        watch.looks[-1].update(looks)
        watch.ras += [event.ras] if event.ras else []
        if not watch.waiting:
            self._looked(now)
        return self._moved_by_us(moved, now)

    def _moved_by_us(self, looks: list[Look], now: float) -> list[Action]:
        """Programs that a signal for their stacks has set going: a sign of life, for a reason of ours."""
        if not looks or self.pulse is None:
            return []
        self.pulse.moved = now
        finding = moved_by_look(looks, {rank: place[0] for rank, place in self.layout().items()})
        self.findings.append(finding)
        return [Note("finding", finding.to_json())]

    def _looked(self, now: float) -> None:
        assert self.watch is not None
        self.watch.waiting.clear()
        self.watch.looked.append(now)

    def _conclude(self, watch: Watch, now: float) -> list[Action]:
        """Two looks, and nothing has moved between them."""
        self.watch = None
        first, second = watch.looks
        if any(look.counted and rank in first and first[rank].counted not in ({}, look.counted)
               for rank, look in second.items()):  # fmt: skip
            return self._moves(watch, now)
        self._rest_until = now + self.spec.hang_timeout
        names = {r.rank: n.name for n in self.nodes.values() for r in n.ranks.values()}
        hang = self._attribute(watch, names)
        if hang is None:
            return [Note("note", {"message": "no rank waits for others: it may be busy; looking again later"})]
        if hang.slow or self.spec.on_hang == "report":
            finding = self._hang_finding(hang, names, now - watch.since)
            self.findings.append(finding)
            return [Note("finding", finding.to_json())]
        self.hang = hang
        return [Note("hang", {"quiet": round(now - watch.since, 1), **vars(hang)}), *self._fail(now)]

    def _moves(self, watch: Watch, now: float) -> list[Action]:
        """Collectives have gone on between the looks; where a pattern was given, that it did not recur is told."""
        assert self.pulse is not None
        self.pulse.moved = now
        pattern = self.spec.hang_pattern
        if pattern is None:
            return [Note("note", {"message": "collectives go on: no hang"})]
        self._rest_until = now + self.spec.hang_timeout
        quiet = f"no log line has matched --hang-pattern {pattern} for {now - watch.since:.0f} s"
        remedy = "see what the ranks print: allranks logs; or correct the pattern"
        finding = Finding("hang-pattern", "warn", f"{quiet}, but collectives go on", remedy)
        self.findings.append(finding)
        return [Note("finding", finding.to_json())]

    def _attribute(self, watch: Watch, names: Mapping[int, str]) -> Hang | None:
        seconds, (first, second) = watch.looked[1] - watch.looked[0], watch.looks
        running = [r.rank for r in self.processes() if r.exit is None]
        blind = Look(-1, error="its node gave no answer")
        found = {r: doing(first.get(r, blind), second.get(r, blind), seconds) for r in running}
        recordings = [read_recording(rank, look.recorder) for rank, look in sorted(second.items()) if look.recorder]
        hang = attribute(found, [e.rank for e in self.exits if e.code == 0], names, recordings)
        pids: dict[int, list[int]] = {}
        for rank in self.ranks():
            pids.setdefault(rank.pid or 0, []).append(rank.rank)
        told = ras.evidence(watch.ras, pids)
        return replace(hang, evidence=(*hang.evidence[:2], *told, *hang.evidence[2:])) if hang and told else hang

    def _hang_finding(self, hang: Hang, names: Mapping[int, str], quiet: float) -> Finding:
        nodes = tuple(dict.fromkeys(names[r] for r in hang.culprits if r in names))
        rank = hang.culprits[0] if len(hang.culprits) == 1 else None
        pid = next((r.pid for r in self.ranks() if r.rank == rank), None)
        where = Where(node=nodes[0], rank=rank, pid=pid) if len(nodes) == 1 else Where(rank=rank, pid=pid, nodes=nodes)
        message = f"nothing has moved for {quiet:.0f} s: {hang.message}"
        return Finding(hang.cause, "warn", message, hang.remedy, where, hang.evidence)

    def _fail(self, now: float) -> list[Action]:
        raise NotImplementedError
