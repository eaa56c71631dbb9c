"""What each failed rank's end is: a root, something unexplained, a consequence, or ended by allranks (pure).

- A rank that ended after allranks began to end the gang is ENDED, unless its error file shows that it had
  raised before.
- What torch's transports say of a lost or absent peer is a CONSEQUENCE. An exception's first link decides: a
  ValueError whose `finally` then fails in a barrier is a ValueError.
- SIGKILL under a guard that died is a consequence of that death.
- Exit codes and signals that say nothing (1 without a traceback, SIGTERM) are UNEXPLAINED.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from allranks.findings import Where

from ..incident import ExitRecord, Incident, Raised
from .agents import behind_agent
from .signatures import ENOUGH, SHAPES, Signature, lost_peer, raised_first, raised_in_log, signature_of
from .words import name_ranks

CLOCK_ERROR = 0.05  # seconds: within these, what is recognised comes before what is not
KILL, ABORT, INTERRUPT, TERM = 9, 6, 2, 15
NATIVE = {11: "SIGSEGV", 7: "SIGBUS", 4: "SIGILL", 8: "SIGFPE", 6: "SIGABRT"}
SIGNALS = {**NATIVE, 9: "SIGKILL", 15: "SIGTERM", 2: "SIGINT", 1: "SIGHUP", 13: "SIGPIPE", 24: "SIGXCPU", 25: "SIGXFSZ",
           3: "SIGQUIT", 10: "SIGUSR1", 12: "SIGUSR2"}  # fmt: skip
NO_SCRIPT = re.compile(r"can't (?:open file|find '__main__' module in) '?([^'\n]+)'?(?:: \[Errno (\d+)\] ([^\n]+))?")
_BENIGN = {"Empty", "StopIteration", "KeyboardInterrupt"}
_UNJOINED = "terminate called without an active exception"


class Role(enum.Enum):
    """Why a rank failed, seen from the gang."""

    ROOT = "root"
    UNEXPLAINED = "unexplained"
    CONSEQUENCE = "consequence"
    ENDED = "ended"


@dataclass(frozen=True)
class Failure:
    """A failed rank. `kind`: raised, killed, crashed or exited; `key`: equal for failures that are alike.

    `peer`: "gone" or "waited" where it complains of a peer; `signal` also holds what a shell made 128+N of;
    `told` is the exception of the chain that gave the cause.
    """

    exit: ExitRecord
    role: Role
    kind: str
    key: str
    raised: Raised | None = None
    signature: Signature | None = None
    signal: int | None = None
    peer: str | None = None
    from_log: bool = False
    told: tuple[str, str] = ("", "")

    @property
    def rank(self) -> int:
        """Its rank."""
        return self.exit.rank

    @property
    def t(self) -> float:
        """When it failed."""
        return self.exit.t

    @property
    def pid(self) -> int | None:
        """Its process, where known."""
        return self.exit.pid or (self.raised.pid if self.raised else None)


def failures(incident: Incident) -> list[Failure]:
    """All failed ranks of an attempt, the earliest first."""
    ends = [behind_agent(e, incident.ranks_by_node.get(e.node, ())) for e in incident.exits if e.failed]
    found = [_classify(incident, e) for e in ends]
    return sorted(found, key=lambda f: (f.t, f.rank))


def _classify(incident: Incident, end: ExitRecord) -> Failure:
    failure = _by_itself(end)
    dead_guards = {f.node for f in incident.faults if f.id == "guard-death"}
    if failure.signal == KILL and end.node in dead_guards:
        return replace(failure, role=Role.CONSEQUENCE)
    if end.expected:
        raised_before = failure.kind == "raised" and not failure.from_log and _before(end.t, incident.detected_t)
        return failure if raised_before else replace(failure, role=Role.ENDED)
    return failure


def _before(t: float, detected: float | None) -> bool:
    return detected is not None and t < detected


def _by_itself(end: ExitRecord) -> Failure:
    """A rank's end without regard to the others."""
    if NO_SCRIPT.search(end.tail) and end.code == 2:
        return Failure(end, Role.ROOT, "exited", "no-script")
    raised = end.raised
    if raised is not None and raised.type != "KeyboardInterrupt":
        return _from_exception(end, raised, from_log=False)
    signal = INTERRUPT if raised is not None else _signal(end)
    if signal is not None:
        return _from_signal(end, signal)
    raised = raised_in_log(end.tail)
    if raised is not None:
        return _from_exception(end, raised, from_log=True)
    return _from_code(end)


def _signal(end: ExitRecord) -> int | None:
    """The signal; a shell between us and the program says 128+N."""
    if end.signal is not None or end.code is None:
        return end.signal
    return end.code - 128 if end.code - 128 in SIGNALS else None


def _from_exception(end: ExitRecord, raised: Raised, from_log: bool) -> Failure:
    links = [(raised.type, raised.text), *raised.chain]
    told = [k for k in links if k[0].rsplit(".", 1)[-1] not in _BENIGN] or links
    peers = [lost_peer(*k) for k in told]
    rows = [signature_of(*k, raised.traceback) for k in told]
    own = [(k, row) for k, row, peer in zip(told, rows, peers, strict=True) if row is not None or peer is None]
    known = [(k, row) for k, row in own if row is not None]
    if rows[-1] is None and peers[-1] is not None:
        return Failure(end, Role.CONSEQUENCE, "raised", peers[-1], raised, peer=peers[-1], from_log=from_log)
    (kind, text), row = (known or own)[0]
    if (kind, text) != links[0] and peers[0] is not None:  # a barrier in a `finally` spoke last
        raised = raised_first(raised, kind, text)
    key = row.cause if row is not None and row.shared else alike(kind, text)
    return Failure(end, Role.ROOT, "raised", key, raised, row, from_log=from_log, told=(kind, text))


def _from_signal(end: ExitRecord, signal: int) -> Failure:
    key = f"signal {signal}"
    if signal == ABORT:
        return _from_abort(end, key)
    if signal in NATIVE:
        return Failure(end, Role.ROOT, "crashed", key, signal=signal)
    role = Role.ROOT if signal == KILL else Role.UNEXPLAINED
    return Failure(end, role, "killed", key, signal=signal)


def _from_abort(end: ExitRecord, key: str) -> Failure:
    """SIGABRT is C++'s way to end: its last words say whether of an own or of a peer's failure."""
    last = "\n".join(end.tail.splitlines()[-30:])[-ENOUGH:]
    if re.search(SHAPES, last):
        return Failure(end, Role.ROOT, "crashed", SHAPES, signal=ABORT, signature=signature_of("", last))
    peer = lost_peer("", last)
    if peer is not None:
        return Failure(end, Role.CONSEQUENCE, "crashed", peer, signal=ABORT, peer=peer)
    role = Role.UNEXPLAINED if _UNJOINED in last else Role.ROOT
    return Failure(end, role, "crashed", f"{key} {_UNJOINED in last}", signal=ABORT)


def _from_code(end: ExitRecord) -> Failure:
    last = "\n".join(end.tail.splitlines()[-10:])[-ENOUGH:]
    peer = lost_peer("", last)
    if peer is not None:
        return Failure(end, Role.CONSEQUENCE, "exited", peer, peer=peer)
    refused = end.code == 2 and re.search(r"^usage: ", end.tail, re.MULTILINE) and "error: " in end.tail
    role = Role.ROOT if refused or end.code in (126, 127) else Role.UNEXPLAINED
    return Failure(end, role, "exited", f"code {end.code}")


def alike(kind: str, text: str) -> str:
    """Equal for texts that differ only in numbers, addresses and the rank's own name."""
    text = re.sub(r"0x[0-9a-fA-F]+|[0-9]+", "#", text)
    return f"{kind.rsplit('.', 1)[-1]}: {text}"


# -- the first failure, and who shares it ----------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """The first failure of a kind with all that are alike. `scope`: rank, node, ranks or all."""

    first: Failure
    ranks: frozenset[int]
    scope: str

    def where(self) -> Where:
        """What can be blamed: one rank, one node, or nobody."""
        if self.scope == "all" or (self.first.signature is not None and self.first.signature.shared):
            return Where()
        one = self.first.exit
        return Where(node=one.node or None, rank=None if self.scope == "node" else one.rank)

    def who(self, incident: Incident) -> str:
        """The subject of the sentence."""
        return "every rank" if self.scope == "all" else name_ranks(incident, self.ranks)

    def also(self, incident: Incident) -> str:
        """Said where most ranks failed alike and the rest had no time to."""
        rest = len(incident.exits) - len(self.ranks)
        if self.scope != "all" or not rest:
            return ""
        return f" ({len(self.ranks)} of {len(incident.exits)} ranks; the rest were ended first)"


def first_of(found: Sequence[Failure], kind: str, incident: Incident, *roles: Role) -> Group | None:
    """The first failure of a kind, with those that are alike."""
    mine = [f for f in found if f.kind == kind and f.role in roles]
    if not mine:
        return None
    near = [f for f in mine if f.t <= mine[0].t + CLOCK_ERROR]
    first = next((f for f in near if f.signature is not None), near[0])
    ranks = frozenset(f.rank for f in mine if f.key == first.key)
    return Group(first, ranks, _scope(incident, found, ranks, first.exit.node))


def _scope(incident: Incident, found: Sequence[Failure], ranks: frozenset[int], node: str) -> str:
    if len(ranks) == 1:
        return "rank"
    done = [(e.rank, e.node) for e in incident.exits if not e.failed]
    ends = [(f.rank, f.exit.node) for f in found] + done
    if ranks == {r for r, where in ends if where == node} and len(incident.ranks_by_node) > 1:
        return "node"
    seen = frozenset(r for r, _ in ends)
    nodes = {incident.node_of(r) for r in ranks}
    rest = [f for f in found if f.rank not in ranks]
    ended = all(f.role is Role.ENDED for f in rest) and len(rest) + len(ranks) == len(seen)
    most = ended and len(ranks) * 2 > len(seen)
    return "all" if nodes >= set(incident.ranks_by_node) and (ranks >= seen or most) else "ranks"
