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
        elif kind == "agent-rank":
            rank = sighting.number("rank", "rank2")
        elif kind == "agent-exit":
            code = sighting.number("code", "code2", "code3")
            if code is not None and "code2" in groups:
                yield End(sighting, code, rank, node, root)
            elif code is not None:
                yield End(sighting, code, None, sighting.line.node)
        elif kind == "srun-task":
            signal = ENDINGS.get(groups["end"].split(" (")[0].strip())
            code = sighting.number("code")
            if signal is not None:
                code = -signal
            if code is not None:
                yield End(sighting, code, None, groups["node"])
        elif "signal2" in groups:
            yield End(sighting, -int(groups["signal2"]), rank, node, root)
        elif kind == "hydra-host":
            node = groups["node"]
            rank = sighting.number("rank")
        elif sighting.number("code", "code2") is not None:
            code = sighting.number("code", "code2") or 0
            yield End(sighting, code, _rank_of(sighting), sighting.place.node or "")
        else:
            name = groups.get("name", groups.get("name2", ""))
            signal = _NUMBERS.get(name) or sighting.number("signal", "signal3") or 9
            if kind == "hydra-exit":
                yield End(sighting, -signal, rank, node)
            else:
                yield End(sighting, -signal, _rank_of(sighting), sighting.line.node)


def _rank_of(sighting: Sighting) -> int | None:
    named = sighting.number("rank", "rank2")
    return sighting.line.rank if named is None else named


def after_abort(evidence: Evidence, crash: Sighting) -> bool:
    """Whether the crashing rank (or a log of no ranks) had complained about a peer or a time-out before."""
    complaints = evidence.of_rows("remote-error", "watchdog", "comm-aborted", "ib-completion")
    rank = crash.line.rank
    return any(s.order < crash.order and (rank is None or s.line.rank in (None, rank)) for s in complaints)
