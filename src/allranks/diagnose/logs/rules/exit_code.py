"""How a process ended, by its launcher's account: native crashes explain themselves a little, SIGKILL does not.

Exit code -9 is no proof of memory: it stays unknown unless something else speaks of memory. -15 is a victim. A
crash that follows a rank's own complaint about a peer or a time-out is the end of its abort, not a root.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...causes import CAUSES
from ...naming import SIGNALS, signal_name
from ...rules.candidate import Candidate, Strength
from ...rules.failures import KILL
from ..evidence import Evidence, shown, whole
from ..sighting import Sighting
from .table import candidate

ID = "exit-code"
SOURCE = "torch: elastic/multiprocessing/errors/__init__.py; Slurm: srun; signal(7), sh(1): 128 + signal"
CRASHES = {11: 0.7, 4: 0.6, 8: 0.6, 7: 0.55}
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
        if self.code < 0:
            return -self.code
        return self.code - 128 if self.code - 128 in SIGNALS else None


def ends(evidence: Evidence) -> list[End]:
    """Every process whose end is told."""
    return list(_ends(evidence))


def _ends(evidence: Evidence) -> Iterator[End]:
    rank: int | None = None
    node, root = "", False
    for sighting in evidence.weighed_by(ID):
        groups = sighting.groups
        kind = sighting.row.id
        if kind == "agent-block":
            root = "Root" in sighting.line.text
        elif kind == "agent-host":
            node = groups["node"]
        elif kind == "agent-rank":
            rank = whole(groups.get("rank") or groups.get("rank2"))
        elif kind == "agent-exit":
            block = "code2" in groups
            code = whole(groups.get("code") or groups.get("code2") or groups.get("code3"))
            if code is not None:
                yield End(
                    sighting, code, rank if block else None, node if block else sighting.line.node, root and block
                )
        elif kind == "srun-task":
            signal = ENDINGS.get(groups["end"].split(" (")[0].strip())
            code = whole(groups.get("code")) if signal is None else -signal
            if code is not None:
                yield End(sighting, code, None, groups["node"])
        else:
            yield End(sighting, -_signal(groups), sighting.rank, sighting.line.node)


def _signal(groups: object) -> int:
    given: dict[str, str] = dict(groups)  # type: ignore[call-overload]
    name = given.get("name", "")
    numbers = {v: k for k, v in SIGNALS.items()}
    return numbers.get(name) or int(given.get("signal") or given.get("signal2") or 9)


def apply(evidence: Evidence) -> list[Candidate]:
    """A candidate for each way in which processes ended; the report's first one speaks."""
    found: dict[str, Candidate] = {}
    told = sorted(ends(evidence), key=lambda e: (not e.root, e.rank is None))
    for end in told:
        made = _judged(evidence, end)
        if made is not None and made.cause + made.rule not in found:
            found[made.cause + made.rule] = made
            if end.signal == KILL:
                found["oom?"] = replace(
                    made,
                    cause="host-out-of-memory",
                    strength=Strength.SYMPTOM,
                    confidence=0.3,
                    message="the kernel may have killed it for memory: its log would say so",
                )
            if end.signal == 7:
                found["shm?"] = replace(
                    made,
                    cause="shm-too-small",
                    strength=Strength.SYMPTOM,
                    confidence=0.35,
                )
    return list(found.values())


def _judged(evidence: Evidence, end: End) -> Candidate | None:
    told = _meaning(evidence, end)
    if told is None:
        return None
    cause, strength, confidence, words = told
    made = candidate(evidence, [end.sighting])
    local = end.sighting.groups.get("local")
    unnamed = f"local rank {local}" if local else "a process"
    place = f"rank {end.rank}" if end.rank is not None else unnamed
    place += f" on {end.node}" if end.node else ""
    where = replace(made.where, rank=end.rank, node=end.node or made.where.node)
    return replace(
        made,
        rule=ID,
        cause=cause,
        strength=strength,
        confidence=confidence,
        message=f"{place} {words}",
        remedy=CAUSES["rank-killed"].remedy(where) if end.signal == KILL else "",
        where=where,
        evidence=(shown(end.sighting.line),),
        culprits=frozenset() if end.rank is None else frozenset({end.rank}),
    )


def _meaning(evidence: Evidence, end: End) -> tuple[str, Strength, float, str] | None:
    """Cause, strength, confidence and words; None for victims."""
    signal = end.signal
    name = f"exit code {end.code}" if signal is None else signal_name(signal)
    if signal in CRASHES:
        if after_abort(evidence, end.sighting):
            return "segfault-native", Strength.SYMPTOM, 0.3, f"crashed with {name} while it aborted"
        return "segfault-native", Strength.WEAK, CRASHES[signal], f"crashed with {name}"
    if signal == KILL:
        words = "was ended by SIGKILL, and nothing here says by whom (memory, a scheduler, a person)"
        return "unknown", Strength.WEAK, 0.45, words
    if end.code in (126, 127):
        cause = "remote-path-missing" if end.code == 127 else "permission-denied"
        return cause, Strength.WEAK, 0.6, f"could not start its program ({name})"
    if end.code == 2:
        words = f"ended with {name}, a parser's code for arguments it refuses"
        return "bad-launch-arguments", Strength.SYMPTOM, 0.4, words
    if signal in (15, 2, 1) or end.code == 0:
        return None
    return "unknown", Strength.SYMPTOM, 0.25, f"ended with {name}, and its last words are not here"


def after_abort(evidence: Evidence, crash: Sighting) -> bool:
    """True where the crashing rank (or a log of no ranks) had complained about a peer or a time-out before."""
    before = evidence.seen("remote-error", "watchdog", "comm-aborted", "ib-completion")
    return any(s.order < crash.order and (s.rank == crash.rank or crash.rank is None or s.rank is None) for s in before)
