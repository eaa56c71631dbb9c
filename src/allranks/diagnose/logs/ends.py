"""How processes ended, by the account of the launcher that reaped them (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..words import SIGNALS, signal_of_code
from .sightings import Evidence, Sighting

ENDINGS = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Aborted": 6,
    "Terminated": 15,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Hangup": 1,
}
_NUMBERS = {name: number for number, name in SIGNALS.items()}


@dataclass(frozen=True)
class End:
    """One process: `signal` or `code`; `root`: the report calls it the first."""

    sighting: Sighting
    code: int
    rank: int | None = None
    node: str = ""
    root: bool = False

    @property
    def signal(self) -> int | None:
        """The signal; a shell says 128 + N."""
        return -self.code if self.code < 0 else signal_of_code(self.code)


def ends(evidence: Evidence) -> Iterator[End]:
    """Give every process whose end is reported.

    The report of torch's agent has a block for each process: its host and rank come before its code.
    """
    rank: int | None = None
    node = ""
    root = False
    for sighting in evidence.weighed_by("exit-code"):
        groups = sighting.groups
        kind = sighting.row.id
        if kind == "agent-block":
            root = "Root" in sighting.line.text
        elif kind == "agent-host":
            node = groups["node"]
        elif kind in ("agent-rank", "hydra-host"):
            rank = sighting.number("rank", "rank2")
            node = groups.get("node", node)
        elif (code := _code(sighting)) is not None:
            named = sighting.number("rank", "rank2")
            if kind == "hydra-exit" or "signal2" in groups or (kind == "agent-exit" and "code2" in groups):
                yield End(sighting, code, rank, node, root)
            elif kind in ("agent-exit", "srun-task"):
                yield End(sighting, code, None, sighting.place.node or "")
            else:
                yield End(sighting, code, sighting.line.rank if named is None else named, sighting.place.node or "")


def _code(sighting: Sighting) -> int | None:
    """Give the exit code that a report tells, below 0 for a signal."""
    groups = sighting.groups
    signal = ENDINGS.get(groups.get("end", "").split(" (")[0].strip())
    signal = signal or _NUMBERS.get(groups.get("name", groups.get("name2", "")))
    signal = signal or sighting.number("signal", "signal2", "signal3")
    code = sighting.number("code", "code2", "code3")
    if signal is None and code is None and sighting.row.id not in ("agent-exit", "srun-task"):
        return -9  # Killed
    return code if signal is None else -signal


def after_abort(evidence: Evidence, crash: Sighting) -> bool:
    """Whether the crashing rank (or a log of no ranks) had complained about a peer or a time-out before."""
    complaints = evidence.of_rows("remote-error", "watchdog", "comm-aborted", "ib-completion")
    rank = crash.line.rank
    return any(s.order < crash.order and (rank is None or s.line.rank in (None, rank)) for s in complaints)
