"""Ranks whose program has ended while their process goes on. Pure.

Python ends a process after the last thread that is not a daemon, whatever the program ended with. A program that failed
is given the grace and a few seconds; one that ended well may go on as under plain Python, and is remarked upon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allranks.findings import Finding, Where
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.run_facts import RankLeaving, Stamped
from allranks.text import join_words, with_reason

PATIENCE = 5.0  # seconds beyond the grace in which a program that failed may let go of its threads
REMARK_AFTER = 30.0  # seconds after which one that ended well is remarked upon
REMEDY = "end those threads before the program ends, or start them with daemon=True"


@dataclass
class Departure:
    """How far a rank is on its way out. `raised_t`: an uncaught exception was recorded; `ended_t`: the program has
    ended, and its process waits for `threads`, or has no main thread any more; `code` is what it will end with.
    `ended_at` is when that was heard, by the clock of the limits."""

    raised_t: float | None = None
    ended_t: float | None = None
    ended_at: float = 0.0
    code: int = 0
    threads: tuple[str, ...] = ()
    remarked: bool = False

    def hear(self, stamped: Stamped[ReportMessage], now: float) -> RankLeaving | None:
        """Take a report of the rank; return the fact that keeps it, where it is one of a departure."""
        if stamped.fact.event == "raised":
            self.raised_t = stamped.t
            self.code = 1
        elif stamped.fact.event == "leaving":
            self.ended_t = stamped.t
            self.ended_at = now
            self.code = stamped.fact.code or 0
            self.threads = stamped.fact.threads
        elif stamped.fact.event == "main-gone":
            self.ended_t = stamped.t
            self.ended_at = now
        elif stamped.fact.event == "threads-ended":
            self.ended_t = None
            self.threads = ()
        else:
            return None
        waits = self.ended_t is not None
        return RankLeaving(stamped.fact.rank, stamped.fact.event, self.code, self.threads, waits)

    def resume(self, stamped: Stamped[RankLeaving], at: float) -> None:
        """Take what `hear` has written, `at` a time by the clock of the limits."""
        self.code = stamped.fact.code
        self.threads = stamped.fact.threads
        if stamped.fact.what == "raised":
            self.raised_t = stamped.t
        elif stamped.fact.waits:
            self.ended_t = stamped.t
            self.ended_at = at
        else:
            self.ended_t = None

    @property
    def failed(self) -> bool:
        """The program has failed, whatever its process still does."""
        return self.raised_t is not None or (self.ended_t is not None and self.code != 0)

    def is_overdue(self, now: float, grace: float) -> bool:
        """Tell whether the program has failed and only threads that it left have kept its process, for too long."""
        return self.failed and self.ended_t is not None and now - self.ended_at >= grace + PATIENCE

    def is_remarkable(self, now: float) -> bool:
        """Tell whether the program has ended well and its process goes on for long."""
        waits = self.ended_t is not None and not self.failed and not self.remarked
        return waits and now - self.ended_at >= REMARK_AFTER


def remark(departures: Mapping[int, Departure], nodes: Mapping[int, str]) -> Finding:
    """Ranks whose programs have ended well, by rank with their nodes: their processes go on."""
    ranks = sorted(departures)
    who = join_words([f"rank {rank} on {nodes[rank]}" for rank in ranks], limit=5)
    threads = join_words(list(dict.fromkeys(name for rank in ranks for name in departures[rank].threads))[:4])
    reached = "has reached the end of its program, but its process waits"
    if len(ranks) > 1:
        reached = "have reached the end of their program, but their processes wait"
    message = with_reason(f"{who} {reached} for threads that still run", threads)
    where = Where(node=nodes[ranks[0]], rank=ranks[0]) if len(ranks) == 1 else Where()
    return Finding("threads-left", "warn", message, REMEDY, where)
