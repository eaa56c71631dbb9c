"""Hanging: notices that nothing moves any more, looks twice at every rank, and says who is waited for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from allranks.diagnose.hangs.attribute import Hang, attribute
from allranks.diagnose.hangs.doing import Look, doing, read_look
from allranks.findings import Finding, Where

from .roster import Roster
from .states import Action, Note, Quiet, Send, Stacks

GAP = 4.0  # seconds between the two looks: what moves meanwhile does not hang
PATIENCE = 22.0  # seconds for the answers: a node gives its own look 20
ENDED_GRACE = 30.0  # seconds without a sign after a rank has ended with 0 while others go on


@dataclass
class Watch:
    """One suspicion. `since`: the last sign of life; `looks`: by rank, first and second."""

    since: float
    asked: float
    waiting: set[str]
    looks: list[dict[int, Look]] = field(default_factory=lambda: [{}])
    looked: list[float] = field(default_factory=list)


class Hanging(Roster):
    """Between Roster and Gang: the part of the decisions that is about hangs."""

    watch: Watch | None = None
    hang: Hang | None = None
    _rest_until = 0.0

    def on_quiet(self, event: Quiet, now: float) -> list[Action]:
        """Comes with every tick; acts once the limit is over."""
        watch = self.watch
        if watch is None:
            return self._suspect(event, now) if self._is_suspect(event, now) else []
        if event.since > watch.since:
            self.watch = None
            return [Note("note", {"message": "ranks go on: no hang"})]
        if watch.waiting and now - watch.asked < PATIENCE:
            return []
        if watch.waiting:
            self._looked(now)
        if len(watch.looked) == 1 and now - watch.looked[0] >= GAP and not watch.waiting and len(watch.looks) == 1:
            watch.looks.append({})
            return self._ask(watch, now)
        return self._conclude(now) if len(watch.looked) == 2 else []

    def _is_suspect(self, event: Quiet, now: float) -> bool:
        limit = self.spec.hang_timeout
        if not limit or now < self._rest_until or self.testing:
            return False
        ended = [e.t for e in self.exits if e.code == 0]
        if ended and now - max(event.since, *ended) >= min(ENDED_GRACE, limit):
            return True
        return now - event.since >= limit

    def _suspect(self, event: Quiet, now: float) -> list[Action]:
        watch = self.watch = Watch(event.since, now, set())
        seconds = round(now - event.since, 1)
        return [Note("hang-suspected", {"quiet": seconds}), *self._ask(watch, now)]

    def _ask(self, watch: Watch, now: float) -> list[Action]:
        """All nodes for all ranks that run."""
        watch.asked = now
        sends: list[Action] = []
        for node in self.nodes.values():
            ranks = [r.rank for r in node.ranks.values() if r.pid is not None and r.exit is None]
            if ranks and not node.gone:
                watch.waiting.add(node.name)
                sends.append(Send(node.name, {"type": "stacks", "ranks": ranks}))
        return sends

    def on_stacks(self, event: Stacks, now: float) -> list[Action]:
        """One node's answer; an answer that nobody waits for is of a late start, or came too late."""
        watch = self.watch
        if watch is None or event.node not in watch.waiting:
            return []
        watch.waiting.discard(event.node)
        watch.looks[-1].update({rank: read_look(rank, found) for rank, found in event.ranks.items()})
        if not watch.waiting:
            self._looked(now)
        return []

    def _looked(self, now: float) -> None:
        assert self.watch is not None
        self.watch.waiting.clear()
        self.watch.looked.append(now)

    def _conclude(self, now: float) -> list[Action]:
        """Two looks, and nothing has moved between them."""
        watch, self.watch = self.watch, None
        assert watch is not None
        self._rest_until = now + self.spec.hang_timeout
        seconds = watch.looked[1] - watch.looked[0]
        names = {r.rank: n.name for n in self.nodes.values() for r in n.ranks.values()}
        running = [r.rank for r in self.processes() if r.exit is None]
        first, second = watch.looks
        blind = Look(-1, error="its node gave no answer")
        found = {r: doing(first.get(r, blind), second.get(r, blind), seconds) for r in running}
        ended = [e.rank for e in self.exits if e.code == 0]
        hang = attribute(found, ended, names)
        if hang is None:
            return [Note("note", {"message": "no rank waits for others: it may be busy; looking again later"})]
        if hang.slow or self.spec.on_hang == "report":
            finding = self._hang_finding(hang, names, now - watch.since)
            self.findings.append(finding)
            return [Note("finding", finding.to_json())]
        self.hang = hang
        return [Note("hang", {"quiet": round(now - watch.since, 1), **vars(hang)}), *self._fail(now)]

    def _hang_finding(self, hang: Hang, names: Mapping[int, str], quiet: float) -> Finding:
        nodes = tuple(dict.fromkeys(names[r] for r in hang.culprits if r in names))
        rank = hang.culprits[0] if len(hang.culprits) == 1 else None
        where = Where(node=nodes[0], rank=rank) if len(nodes) == 1 else Where(rank=rank, nodes=nodes)
        message = f"nothing has moved for {quiet:.0f} s: {hang.message}"
        return Finding(hang.cause, "warn", message, hang.remedy, where, hang.evidence)

    def _fail(self, now: float) -> list[Action]:
        raise NotImplementedError

