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

from ..exceptions import AFTER, ExceptionLink, Raised, carries_worker, raised_in_log
from ..incident import Incident, RankEnd
from ..logs.ends import End, ends
from ..logs.lines import read_line
from ..logs.sightings import Evidence
from ..signatures import BY_ID, ENOUGH, Row, lost_peer, row_of_exception
from ..words import ABORT, name_ranks, signal_of_code, without_numbers

CLOCK_ERROR = 0.05  # seconds: within these, what is recognised comes before what is not
KILL = 9
BUS = 7
INTERRUPT = 2
NATIVE = (11, BUS, 4, 8)  # SIGSEGV, SIGBUS, SIGILL, SIGFPE
LOST_ENVIRONMENT = BY_ID["lost-environment"]
NO_PAGE = BY_ID["bus-error"].means
NOT_STARTED = {126: "permission-denied", 127: "remote-path-missing"}  # exit codes of sh(1) and env(1)
NO_COMMAND = re.compile(r"([\w.+-]{1,100})['’]?: (?:command not found|not found|No such file or directory)\s*$")
NOT_ON_PATH = (
    "run `command -v {path}` on {nodes}. Where that finds nothing, install it there, activate its environment with "
    "--prelude, or name the interpreter that it lies beside with --python"
)
# What bash and dash say of a line of a script, or of a child that was killed, and env(1) of a program.
_OF_SHELL = re.compile(
    r"[^\s:]{1,300}: line \d{1,9}: |[^\s:]{1,300}: (?:\d{1,9}: )?[^\n:]{1,300}: (?:command )?not found$"
    r"|env: [^\n]{1,300}: No such file or directory$"
)
USAGE = re.compile(r"^usage: ", re.MULTILINE)  # argparse, and what is like it
_REFUSAL = re.compile(r"[^\s:][^\n:]{0,200}: error: ")
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


class FailureRole(enum.Enum):
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

    exit: RankEnd
    role: FailureRole
    kind: str
    key: str
    raised: Raised | None = None
    signature: Row | None = None
    signal: int | None = None
    peer: str | None = None
    from_log: bool = False
    quoted: ExceptionLink | None = None

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
        return self.exit.fact.pid or (self.raised.pid if self.raised else None)


def failures(incident: Incident) -> list[Failure]:
    """Read the ends of all failed ranks of an attempt, the earliest first."""
    ends = [behind_agent(e, incident.ranks_by_node.get(e.node, ())) for e in incident.exits if e.failed]
    classified = [_classify(incident, _end_of_program(incident, end)) for end in ends]
    return sorted(classified, key=lambda f: (f.t, f.rank))


def _classify(incident: Incident, end: RankEnd) -> Failure:
    failure = _by_itself(end)
    if failure.signal == KILL and end.node in incident.agent_deaths:
        return replace(failure, role=FailureRole.CONSEQUENCE)
    raised_before = failure.kind == "raised" and not failure.from_log and _is_before(incident, end.t)
    if end.fact.expected and not raised_before:
        return replace(failure, role=FailureRole.ENDED)
    return failure


def _end_of_program(incident: Incident, end: RankEnd) -> RankEnd:
    """Give the end of the program where its process outlived it and was then ended by allranks."""
    left = incident.left.get(end.rank)
    if (
        left is None
        or left.fact.code == 0
        or not end.fact.expected
        or end.raised is not None
        or not _is_before(incident, left.t)
    ):
        return end
    return replace(end, t=left.t, fact=end.fact._replace(code=left.fact.code, signal=None, expected=False))


def _is_before(incident: Incident, t: float) -> bool:
    return incident.detected_t is not None and t < incident.detected_t


def _by_itself(end: RankEnd) -> Failure:
    if NO_SCRIPT.search(end.tail) and (end.hides or end.fact.code == 2):
        return Failure(end, FailureRole.ROOT, "exited", "no-script")
    raised = end.raised
    signal = _signal(end)
    from_log = raised is None
    if raised is None and signal is None:
        raised = raised_in_log(end.tail)
    if raised is not None and telling(raised)[0].name == "KeyboardInterrupt":
        signal = INTERRUPT
    elif raised is not None:
        return _from_exception(end, raised, from_log)
    if signal is not None:
        return replace(_from_signal(end, signal), raised=raised)
    return _from_code(end)


def _signal(end: RankEnd) -> int | None:
    """Give the signal that ended a rank; a shell between us and the program says 128+N."""
    if end.fact.signal is not None or end.fact.code is None:
        return end.fact.signal
    return signal_of_code(end.fact.code)


def _from_exception(end: RankEnd, raised: Raised, from_log: bool) -> Failure:
    links = telling(raised)
    rows = [row_of_exception(k.type, k.text, raised.traceback) for k in links]
    fitting = next((at for at, row in enumerate(rows) if row is not None), None)
    of_program = [k for k in links if lost_peer(k.type, k.text) is None]
    peer = lost_peer(links[-1].type, links[-1].text)
    if rows[-1] is None and peer is not None:
        return Failure(end, FailureRole.CONSEQUENCE, "raised", peer, raised, peer=peer, from_log=from_log)
    if fitting is None:
        quoted = of_program[-1]
        return Failure(end, FailureRole.ROOT, "raised", alike(quoted), raised, from_log=from_log, quoted=quoted)
    row = rows[fitting]
    assert row is not None
    quoted = [k for k in links if (k.name, k.text) == (links[fitting].name, links[fitting].text)][-1]
    key = row.cause if row.cause in SHARED else alike(quoted)
    return Failure(end, FailureRole.ROOT, "raised", key, raised, row, from_log=from_log, quoted=quoted)


def telling(raised: Raised) -> list[ExceptionLink]:
    """Choose the exceptions of a chain that say something, the innermost last: no carriers, no empty queues."""
    links = raised.links
    return [k for k in links if k.name not in _BENIGN and not carries_worker(k)] or [links[0]]


def _from_signal(end: RankEnd, signal: int) -> Failure:
    if signal == ABORT:
        return _from_abort(end)
    failure = Failure(end, FailureRole.ROOT, "killed", f"signal {signal}", signal=signal)
    if signal in NATIVE:
        return replace(failure, kind="crashed")
    if signal == KILL:
        return failure
    return replace(failure, role=FailureRole.UNEXPLAINED)


def _from_abort(end: RankEnd) -> Failure:
    """Read the last words before a SIGABRT, C++'s way to end: they tell a rank's own failure from a peer's."""
    failure = Failure(end, FailureRole.ROOT, "crashed", SHAPES, signal=ABORT)
    last = _last_lines(end.tail, 30)
    if SHAPES in last:
        return replace(failure, signature=row_of_exception("", last))
    peer = lost_peer("", last)
    if peer is not None:
        return replace(failure, role=FailureRole.CONSEQUENCE, key=peer, peer=peer)
    if _UNJOINED in last:
        return replace(failure, role=FailureRole.UNEXPLAINED, key=_UNJOINED)
    return replace(failure, key="signal 6")


def _last_lines(tail: str, count: int) -> str:
    return "\n".join(tail.splitlines()[-count:])[-ENOUGH:]


def no_module(tail: str) -> re.Match[str] | None:
    """Match what `python -m` says of a module that is not there, where it is the last line of a log."""
    last = [line for line in tail[-ENOUGH:].splitlines() if line.strip()][-1:]
    return NO_MODULE.search("".join(last))


def _from_code(end: RankEnd) -> Failure:
    peer = lost_peer("", _last_lines(end.tail, 10))
    if peer is not None:
        return Failure(end, FailureRole.CONSEQUENCE, "exited", peer, peer=peer)
    failure = Failure(end, FailureRole.ROOT, "exited", f"code {end.fact.code}")
    is_refusal = end.fact.code == 2 and USAGE.search(end.tail) and "error: " in end.tail
    is_start = end.hides or end.fact.code in NOT_STARTED or LOST_ENVIRONMENT.find(end.tail) is not None
    if is_refusal or is_start or no_module(end.tail) is not None:
        return failure
    return replace(failure, role=FailureRole.UNEXPLAINED)


def refuses_arguments(tail: str) -> bool:
    """Tell whether a log ends as argparse, and what is like it, refuses a command line."""
    return USAGE.search(tail) is not None and _REFUSAL.match(_last_lines(tail, 1)) is not None


def ends_as_failed(tail: str) -> bool:
    """Tell whether a log ends as that of a program that failed: by an exception, or because it was not there."""
    last = _last_lines(tail.rstrip(), 1)
    if _OF_SHELL.match(last) or NO_SCRIPT.search(last) or no_module(tail) or refuses_arguments(tail):
        return True
    if names_ranks(tail) and "=====" in _last_lines(tail.rstrip(), AFTER + 1):
        return True
    raised = raised_in_log(tail)
    return raised is not None and not raised.thread


def alike(link: ExceptionLink) -> str:
    """Make a key that is equal for exceptions whose texts differ only in numbers and addresses."""
    return f"{link.name}: {without_numbers(link.text)}"


# -- the first failure, and who shares it ----------------------------------------------------------------


@dataclass(frozen=True)
class AlikeFailures:
    """The first failure of a kind with all that are alike. `scope`: rank, node, ranks or all."""

    first: Failure
    ranks: frozenset[int]
    scope: str

    @property
    def is_shared(self) -> bool:
        """Tell whether what the ranks say concerns ranks as a whole: who said it first is not at fault for that."""
        return self.first.signature is not None and self.first.signature.cause in SHARED

    def where(self) -> Where:
        """Give the place to blame: one rank, one node, or none."""
        end = self.first.exit
        if self.scope == "all" or self.is_shared:
            return Where()
        if self.scope == "node":
            return Where(node=end.node or None)
        return Where(node=end.node or None, rank=end.rank)

    def who(self, incident: Incident) -> str:
        """Write the subject of the sentence."""
        if self.scope == "all":
            return "every rank"
        return name_ranks(incident, self.ranks)

    @property
    def pid(self) -> str:
        """`pid 77` where one process alone failed, and it is named."""
        if self.first.pid is None or len(self.ranks) > 1:
            return ""
        return f"pid {self.first.pid}"

    def also(self, incident: Incident) -> str:
        """Say where most ranks failed alike and the rest had no time to."""
        if self.scope != "all" or len(incident.exits) == len(self.ranks):
            return ""
        return f" ({len(self.ranks)} of {len(incident.exits)} ranks, as the rest were ended first)"


def first_of(failed: Sequence[Failure], kind: str, incident: Incident) -> AlikeFailures | None:
    """Find the first failure of a kind that explains itself, else the first that does not, with all that are alike."""
    by_role = (
        [f for f in failed if f.kind == kind and f.role is role] for role in (FailureRole.ROOT, FailureRole.UNEXPLAINED)
    )
    of_kind = next((group for group in by_role if group), None)
    if of_kind is None:
        return None
    near = [f for f in of_kind if f.t <= of_kind[0].t + CLOCK_ERROR]
    first = next((f for f in near if f.signature is not None), near[0])
    ranks = frozenset(f.rank for f in of_kind if f.key == first.key)
    return AlikeFailures(first, ranks, _scope(incident, failed, ranks, first.exit.node))


def _scope(incident: Incident, failed: Sequence[Failure], ranks: frozenset[int], node: str) -> str:
    if len(ranks) == 1:
        return "rank"
    nodes = {f.rank: f.exit.node for f in failed}
    nodes.update((e.rank, e.node) for e in incident.exits if not e.failed)
    if ranks == {rank for rank, of_rank in nodes.items() if of_rank == node} and len(incident.ranks_by_node) > 1:
        return "node"
    rest = [f for f in failed if f.rank not in ranks]
    all_ended = all(f.role is FailureRole.ENDED for f in rest) and len(rest) + len(ranks) == len(nodes)
    is_most = ranks >= nodes.keys() or (all_ended and len(ranks) * 2 > len(nodes))
    everywhere = {incident.node_of(rank) for rank in ranks} >= set(incident.ranks_by_node)
    if is_most and everywhere:
        return "all"
    return "ranks"


_AGENT_LINE = re.compile(
    r"^[WEI]\d{4} [^\n]*torch/distributed/elastic/|^Traceback \(most recent call last\):\n"
    r"(?=(?:  [^\n]*\n)*[^\n]*ChildFailedError)",
    re.MULTILINE,
)
_RANK_LINE = re.compile(r"^\[rank(\d+)\]:.*\n?", re.MULTILINE)


def behind_agent(end: RankEnd, ranks: tuple[int, ...]) -> RankEnd:
    """Give the end of the rank that an agent names as the first to fail; any other end as it is.

    A rank that is none of `ranks`, those of the node, keeps the number of the agent's own process."""
    root = _root_cause(end.tail)
    if root is None or root.rank is None:
        return _by_error_file(end, ranks)
    of_agent = end.raised is None or end.raised.type == "ChildFailedError"
    is_own = not of_agent and end.details.rank in (None, root.rank)
    pid = root.sighting.number("pid2")
    rank = root.rank if root.rank in ranks else end.rank  # it may count ranks that were not planned
    fact = end.fact._replace(rank=rank, pid=pid, code=root.code, signal=None)
    if root.code < 0:
        fact = fact._replace(code=None, signal=root.signal)
    if not is_own:
        fact = fact._replace(error=None)
    return replace(end, fact=fact, tail=of_rank(end.tail, root.rank))


def names_ranks(tail: str) -> bool:
    """Tell whether a log ends with the report of torch's agent on the ranks that it has started."""
    return _root_cause(tail) is not None


def _root_cause(tail: str) -> End | None:
    """Read the process that the agent's report calls the first failure; None without a report."""
    if "Root Cause" not in tail:
        return None
    lines = [line for raw in tail.splitlines() for line in read_line(raw)]
    return next((end for end in ends(Evidence.of(lines)) if end.root), None)


def _by_error_file(end: RankEnd, ranks: tuple[int, ...]) -> RankEnd:
    """Take the first rank that left an error file, where a launcher names none (deepspeed)."""
    rank = end.details.rank
    if rank is not None and rank != end.rank and rank in ranks:
        return replace(end, fact=end.fact._replace(rank=rank, pid=end.details.pid))
    if len(ranks) > 1:
        return replace(end, tail=_without_others(end.tail, end.rank))
    return end


def of_rank(tail: str, rank: int) -> str:
    """Cut a log before the agent speaks, and leave out the lines that name another rank."""
    return _without_others(_AGENT_LINE.split(tail, maxsplit=1)[0], rank)


def _without_others(tail: str, rank: int) -> str:
    """Leave out the lines that name another rank: what that one says of a lost peer is not this rank's end."""
    if "[rank" not in tail:
        return tail
    return _RANK_LINE.sub(lambda line: line[0] if line[1] == str(rank) else "", tail)
