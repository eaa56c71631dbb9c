"""What each failed rank's end is: a root, something unexplained, a consequence, or ended by allranks (pure).

- A rank that ended after allranks began to end the gang is ENDED, unless its error file shows that it had
  raised before.
- What torch's transports say of a lost or absent peer is a CONSEQUENCE. An exception's first link decides: a
  ValueError whose `finally` then fails in a barrier is a ValueError.
- SIGKILL under an agent that died is a consequence of that death.
- Exit codes and signals that say nothing (1 without a traceback, SIGTERM) are UNEXPLAINED.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from allranks.findings import Where

from ..exceptions import Link, Raised, carries_worker, raised_in_log
from ..incident import ExitRecord, Incident
from ..signatures import ENOUGH, Row, lost_peer, row_of_exception
from ..words import SIGNALS, name_ranks
from .agents import behind_agent

CLOCK_ERROR = 0.05  # seconds: within these, what is recognised comes before what is not
KILL = 9
ABORT = 6
BUS = 7
INTERRUPT = 2
NATIVE = {11: "SIGSEGV", 7: "SIGBUS", 4: "SIGILL", 8: "SIGFPE", 6: "SIGABRT"}
NO_SCRIPT = re.compile(r"can't (?:open file|find '__main__' module in) '?([^'\n]+)'?(?:: \[Errno (\d+)\] ([^\n]+))?")
# CPython: Lib/runpy.py, _get_module_details, through Modules/main.c: what `python -m` says before it runs a line.
NO_MODULE = re.compile(
    r"^(?P<python>\S+): (?:No module named (?P<module>[^\s;]+)(?:; [^\n]{1,200})?"
    r"|Error while finding module specification for '[^'\n]{1,200}' "
    r"\(ModuleNotFoundError: No module named '(?P<parent>[^'\n]{1,200})'[^\n]{0,200}\))$",
    re.MULTILINE,
)
SHAPES = "op.preamble.length <= op.nbytes"  # gloo: transport/tcp/pair.cc
# What their exceptions say concerns ranks as a whole, so it blames none of them.
SHARED = frozenset({"collective-mismatch", "collective-shape-mismatch", "unused-parameters-ddp"})
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

    `peer`: the row of a transport that complains of a peer; `signal` also holds what a shell made 128+N of;
    `quoted` is the exception of the chain that says what failed.
    """

    exit: ExitRecord
    role: Role
    kind: str
    key: str
    raised: Raised | None = None
    signature: Row | None = None
    signal: int | None = None
    peer: str | None = None
    from_log: bool = False
    quoted: Link | None = None

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
    classified = [_classify(incident, e) for e in ends]
    return sorted(classified, key=lambda f: (f.t, f.rank))


def _classify(incident: Incident, end: ExitRecord) -> Failure:
    end = _own_end(incident, end)
    failure = _by_itself(end)
    dead_agents = {f.node for f in incident.faults if f.id == "agent-death"}
    if failure.signal == KILL and end.node in dead_agents:
        return replace(failure, role=Role.CONSEQUENCE)
    if end.expected:
        raised_before = failure.kind == "raised" and not failure.from_log and _before(end.t, incident.detected_t)
        return failure if raised_before else replace(failure, role=Role.ENDED)
    return failure


def _own_end(incident: Incident, end: ExitRecord) -> ExitRecord:
    """The end of the program, where its process outlived it and was then ended by allranks."""
    left = incident.left.get(end.rank)
    if left is None or left.code == 0 or not end.expected or not _before(left.t, incident.detected_t):
        return end
    return end if end.raised is not None else replace(end, code=left.code, signal=None, t=left.t, expected=False)


def _before(t: float, detected: float | None) -> bool:
    return detected is not None and t < detected


def _by_itself(end: ExitRecord) -> Failure:
    """A rank's end without regard to the others."""
    if NO_SCRIPT.search(end.tail) and end.code == 2:
        return Failure(end, Role.ROOT, "exited", "no-script")
    raised = end.raised
    if raised is not None and telling(raised)[0].name != "KeyboardInterrupt":
        return _from_exception(end, raised, from_log=False)
    signal = INTERRUPT if raised is not None else _signal(end)
    if signal is not None:
        return replace(_from_signal(end, signal), raised=raised)
    raised = raised_in_log(end.tail)
    if raised is not None and telling(raised)[0].name == "KeyboardInterrupt":
        return replace(_from_signal(end, INTERRUPT), raised=raised)
    if raised is not None:
        return _from_exception(end, raised, from_log=True)
    return _from_code(end)


def _signal(end: ExitRecord) -> int | None:
    """The signal; a shell between us and the program says 128+N."""
    if end.signal is not None or end.code is None:
        return end.signal
    return end.code - 128 if end.code - 128 in SIGNALS else None


def _from_exception(end: ExitRecord, raised: Raised, from_log: bool) -> Failure:
    links = telling(raised)
    peers = [lost_peer(k.type, k.text) for k in links]
    rows = [row_of_exception(k.type, k.text, raised.traceback) for k in links]
    if rows[-1] is None and peers[-1] is not None:
        return Failure(end, Role.CONSEQUENCE, "raised", peers[-1], raised, peer=peers[-1], from_log=from_log)
    fitting = next((k for k, row in zip(links, rows, strict=True) if row is not None), None)
    row = next((row for row in rows if row is not None), None)
    of_program = [k for k, peer in zip(links, peers, strict=True) if peer is None]
    quoted = (
        of_program[-1]
        if fitting is None
        else [k for k in links if (k.name, k.text) == (fitting.name, fitting.text)][-1]
    )
    key = row.cause if row is not None and row.cause in SHARED else alike(quoted.type, quoted.text)
    return Failure(end, Role.ROOT, "raised", key, raised, row, from_log=from_log, quoted=quoted)


def telling(raised: Raised) -> list[Link]:
    """The exceptions of a chain that say something, the innermost last: no carriers of others, no empty queues."""
    links = raised.links
    return [k for k in links if k.name not in _BENIGN and not carries_worker(k)] or [links[0]]


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
    if SHAPES in last:
        return Failure(end, Role.ROOT, "crashed", SHAPES, signal=ABORT, signature=row_of_exception("", last))
    peer = lost_peer("", last)
    if peer is not None:
        return Failure(end, Role.CONSEQUENCE, "crashed", peer, signal=ABORT, peer=peer)
    role = Role.UNEXPLAINED if _UNJOINED in last else Role.ROOT
    return Failure(end, role, "crashed", f"{key} {_UNJOINED in last}", signal=ABORT)


def no_module(tail: str) -> re.Match[str] | None:
    """What `python -m` says of a module that is not there, where it is the last word of a log."""
    last = [line for line in tail[-ENOUGH:].splitlines() if line.strip()][-1:]
    return NO_MODULE.search(last[0]) if last else None


def _from_code(end: ExitRecord) -> Failure:
    last = "\n".join(end.tail.splitlines()[-10:])[-ENOUGH:]
    peer = lost_peer("", last)
    if peer is not None:
        return Failure(end, Role.CONSEQUENCE, "exited", peer, peer=peer)
    refused = end.code == 2 and re.search(r"^usage: ", end.tail, re.MULTILINE) and "error: " in end.tail
    says_why = refused or end.code in (126, 127) or no_module(end.tail) is not None
    role = Role.ROOT if says_why else Role.UNEXPLAINED
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
        if self.scope == "all" or (self.first.signature is not None and self.first.signature.cause in SHARED):
            return Where()
        one = self.first.exit
        return Where(node=one.node or None, rank=None if self.scope == "node" else one.rank)

    def who(self, incident: Incident) -> str:
        """The subject of the sentence."""
        return "every rank" if self.scope == "all" else name_ranks(incident, self.ranks)

    @property
    def pid(self) -> str:
        """`pid 77` where one process alone failed, and it is named."""
        return f"pid {self.first.pid}" if self.first.pid and len(self.ranks) == 1 else ""

    def also(self, incident: Incident) -> str:
        """Said where most ranks failed alike and the rest had no time to."""
        rest = len(incident.exits) - len(self.ranks)
        if self.scope != "all" or not rest:
            return ""
        return f" ({len(self.ranks)} of {len(incident.exits)} ranks; the rest were ended first)"


def first_of(failed: Sequence[Failure], kind: str, incident: Incident, *roles: Role) -> Group | None:
    """The first failure of a kind, with those that are alike."""
    of_kind = [f for f in failed if f.kind == kind and f.role in roles]
    if not of_kind:
        return None
    near = [f for f in of_kind if f.t <= of_kind[0].t + CLOCK_ERROR]
    first = next((f for f in near if f.signature is not None), near[0])
    ranks = frozenset(f.rank for f in of_kind if f.key == first.key)
    return Group(first, ranks, _scope(incident, failed, ranks, first.exit.node))


def _scope(incident: Incident, failed: Sequence[Failure], ranks: frozenset[int], node: str) -> str:
    if len(ranks) == 1:
        return "rank"
    done = [(e.rank, e.node) for e in incident.exits if not e.failed]
    ends = [(f.rank, f.exit.node) for f in failed] + done
    if ranks == {r for r, where in ends if where == node} and len(incident.ranks_by_node) > 1:
        return "node"
    ended_ranks = frozenset(r for r, _ in ends)
    nodes = {incident.node_of(r) for r in ranks}
    rest = [f for f in failed if f.rank not in ranks]
    ended = all(f.role is Role.ENDED for f in rest) and len(rest) + len(ranks) == len(ended_ranks)
    most = ended and len(ranks) * 2 > len(ended_ranks)
    return "all" if nodes >= set(incident.ranks_by_node) and (ranks >= ended_ranks or most) else "ranks"
