"""Whether a failed run is tried again: a table by cause, then what the attempts before say. Pure.

`TABLE` has a row for each charge, and every cause (`allranks.diagnose.causes`) has one. `decide` reads
it, stops where the same thing happens at the same step again, and chooses which node takes whose place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import NamedTuple

from allranks.diagnose.causes import CAUSES, UNKNOWN, Charge, likeliest
from allranks.findings import Verdict
from allranks.text import count_of, format_duration, join_words

LIVED = 300.0  # seconds that count as progress where a program shows no step
# Seconds before a start that failed is tried again, by how many have failed in a row: a name server, sshd and a port
# are back after some seconds, a host after minutes.
PAUSES = (2.0, 5.0, 10.0, 20.0, 30.0)


class PolicyRow(NamedTuple):
    """What follows on one charge. `again`: always, never, or a condition that `decide` knows by name."""

    name: str
    again: str
    replace: bool  # the node that the verdict names gives its place to a spare, where there is one
    why: str


# what is charged, tried again?, is the node replaced?, why
TABLE = {
    Charge.SETTINGS: ("never", False, "what is set wrongly fails the same way again"),
    Charge.PROGRAM: ("never", False, "the program's own fault comes again at the same place"),
    Charge.MEMORY: ("never", False, "the program needs more memory than it has, and would need it again"),
    Charge.LIMIT: ("never", False, "a limit of the system stays until it is raised"),
    Charge.PERSON: ("never", False, "the run was asked to end"),
    Charge.ALLRANKS: ("never", False, "a defect of allranks comes again"),
    Charge.HANG: ("hang", False, "--on-hang restart is set"),
    Charge.NODE: ("always", True, "the node is at fault, not the program"),
    Charge.NETWORK: ("always", False, "a link or a service failed, not the program"),
    Charge.SCHEDULER: ("always", True, "the scheduler took the machine away, the program did nothing wrong"),
    Charge.CRASH: ("always", False, "a crash may be the machine's, and need not come again"),
    Charge.EXIT: ("always", False, "an exit code without an exception does not say that it comes again"),
    Charge.KILLED: ("progress", False, "a signal from outside need not come again, and the run had made progress"),
    Charge.SITE: ("progress", False, "its signature names no charge, and the run had made progress"),
    Charge.UNKNOWN: ("progress", False, "nothing says why it failed, and the run had made progress"),
}
ROWS = {charge: PolicyRow(charge.value, *row) for charge, row in TABLE.items()}
# What the label alone does not tell; a verdict's sentence does. Read before the table.
OUTSIDE = PolicyRow(
    "outside", "always", False, "the exception speaks of something outside the program, which may be back"
)
RAISED = re.compile(r" raised (?:\w+\.)*(\w+)(?:: (.*))?")
OUTSIDE_TYPES = re.compile(
    r"\A(?:Connection(?:Reset|Refused|Aborted)?Error|BrokenPipeError|TimeoutError|(?:Read|Connect|Connection)Timeout"
    r"(?:Error)?|(?:New|Max)\w*(?:Connection|Retry)Error|ChunkedEncodingError|IncompleteRead|ProtocolError|URLError|"
    r"RemoteDisconnected|gaierror|SSLError|EndpointConnectionError|ServiceUnavailable|SlowDown)\Z"
)
OUTSIDE_WORDS = re.compile(
    r"Input/output error|Stale (?:NFS )?file handle|Connection (?:timed out|reset|refused)|Remote I/O error|"
    r"Transport endpoint is not connected|Host is down|\b50[234] (?:Server Error|Service|Bad|Gateway)"
)


@dataclass(frozen=True)
class Tried:
    """An attempt that failed, as far as the decision needs it.

    `step` is how far the rank at fault was, else the furthest of all; None where the program shows none. On
    `unusable_nodes` no rank can be started any more: lost, or without agent or supervisor. `ran`: ranks were started.
    `refused`: a check of the nodes failed. `stayed_away`: nodes that were waited for in vain.
    """

    verdict: Verdict
    step: int | None = None
    seconds: float = 0.0
    initialised: bool = False
    ran: bool = True
    hung: bool = False
    refused: bool = False
    unusable_nodes: tuple[str, ...] = ()
    stayed_away: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()  # of the unusable nodes those that do not answer
    left_nodes: bool = False  # it was followed by an attempt without the nodes that it lost

    @property
    def blamed(self) -> tuple[str, ...]:
        """The nodes that the verdict names."""
        where = self.verdict.finding.where
        if where.node:
            return (where.node,)
        return where.nodes


@dataclass(frozen=True)
class Means:
    """What there is: retries, spares with the ranks each can take (None: any number), ranks a node has.

    `asked_spares` is how many spares the run began with, `node_wait` how long a lost node is waited for.
    """

    retries: int
    on_hang: str = "stop"
    spares: Mapping[str, int | None] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    asked_spares: int = 0
    node_wait: float = 0.0
    least: int | None = None  # nodes that will do; None: all
    newcomers: tuple[str, ...] = ()  # nodes that stand by and would find a place
    insists: bool = False  # on_failure of its role is restart: whatever ended it


@dataclass(frozen=True)
class Decision:
    """What follows on an attempt: finish, retry, repeat (another port) or train (after the tests), and why.

    `replace` maps nodes to those that take their place; a node to itself: it is reached again, with a new agent.
    `pause` are seconds until then. `leave_out` are nodes that lose their place (`why_out`), `take_in` those that stand
    by and get one.
    """

    kind: str
    reason: str = ""
    replace: Mapping[str, str] = field(default_factory=dict)
    pause: float = 0.0
    leave_out: tuple[str, ...] = ()
    why_out: str = ""
    take_in: tuple[str, ...] = ()
    hopeless: str = ""  # why another try would fail too, by whomever; empty where that is not known


def row_of(tried: Tried) -> PolicyRow:
    """Choose an attempt's row: by what the gang saw, by the verdict's sentence, by its label."""
    cause = tried.verdict.cause
    message = tried.verdict.finding.message
    raised = RAISED.search(message)
    if tried.hung:
        return ROWS[Charge.HANG]
    if raised is not None and cause in ("program-exception", "unknown"):
        outside = OUTSIDE_TYPES.match(raised[1]) or OUTSIDE_WORDS.search(raised[2] or "")
        if outside:
            return OUTSIDE
        return ROWS[Charge.PROGRAM]
    if cause == "program-exception":
        return ROWS[Charge.EXIT]
    if raised is not None and cause == "collective-mismatch":
        return ROWS[Charge.PROGRAM]  # torch saw it and raised: nothing hung
    if tried.unusable_nodes and cause in ("agent-killed", "unknown"):
        return ROWS[Charge.NODE]  # an agent was killed: the program did not fail
    return ROWS[CAUSES.get(likeliest(tried.verdict), UNKNOWN).charge]


def decide(history: Sequence[Tried], means: Means) -> Decision:
    """On the last of the attempts that failed; the others came before it, in order."""
    last = history[-1]
    number = sum(not tried.left_nodes for tried in history)  # the loss of a node costs no retry where others go on
    row = row_of(last)
    replace = _replace(last, row, means)
    leave = _left_out(last, row, means, replace)
    replace = {old: new for old, new in replace.items() if old not in leave}
    changed = {**replace, **dict.fromkeys(leave, "")}
    against = "" if means.insists and last.ran else _against(history, row, means, changed)
    end = Decision("finish", against, hopeless=_hopeless(history, row))
    if means.retries == 0 and not leave:
        return replace_fields(end, reason="no retry was asked for (--retries)")
    if against:
        return end
    if number > means.retries and not leave:
        spent = "the retry is" if means.retries == 1 else f"the {means.retries} retries are"
        return replace_fields(end, reason=f"{spent} used up")
    pause = _pause(history, changed)
    why = 'on_failure = "restart" is set for the role' if means.insists else row.why
    reasons = [why, *_replacements(replace, last.verdict.attempt + 1, means)]
    if leave:
        left = len(means.ranks) - len(leave)
        reasons.append(f"{join_words(leave)} has no place: {left} of {count_of(len(means.ranks), 'node')} go on")
    if pause:
        reasons.append(f"The next attempt begins in {pause:g} s")
    why_out = ""
    if leave:
        why_out = "it is lost" if set(leave) <= set(last.gone) else "it is at fault"
    take_in = tuple(name for name in means.newcomers if name not in replace.values())
    return Decision("retry", ". ".join(reasons), replace, pause, leave_out=leave, why_out=why_out, take_in=take_in)


def _pause(history: Sequence[Tried], replace: Mapping[str, str]) -> float:
    """Where a start has failed and the same nodes try again."""
    if history[-1].ran or _is_replaced(history[-1], replace):
        return 0.0
    failed = 0
    for tried in reversed(history):
        if tried.ran:
            break
        failed += 1
    return PAUSES[min(failed, len(PAUSES)) - 1]


def _against(history: Sequence[Tried], row: PolicyRow, means: Means, replace: Mapping[str, str]) -> str:
    """Say why no attempt follows; empty where one may follow."""
    last = history[-1]
    if not last.ran:
        return _against_start(history, row, replace, means)
    if row.again == "never":
        return row.why
    if row.again == "hang" and means.on_hang != "restart":
        return "a hang is tried again with --on-hang restart only"
    has_moved = last.step is not None or last.initialised or last.seconds >= LIVED
    if row.again == "progress" and not has_moved:
        return "nothing says why it failed, and the run had made no progress (--step-pattern shows allranks the steps)"
    return _repeated(history, row)


def _repeated(history: Sequence[Tried], row: PolicyRow) -> str:
    last = history[-1]
    if not any(_same(before, last, row) for before in history[:-1]):
        return ""
    again = f"{last.verdict.cause} came again at step {last.step}"
    if last.step is None:
        again = f"{last.verdict.cause} came again, and no step was seen in between"
    return f"{again}. Another attempt would end there too"


def _hopeless(history: Sequence[Tried], row: PolicyRow) -> str:
    """Say why nothing but a change helps: the program's or the settings' fault, or what came again at one step."""
    if row.again == "never" and row.name not in (Charge.PERSON.value, Charge.ALLRANKS.value):
        return row.why
    if history[-1].refused:
        return "a check of the nodes failed, and would fail again"
    return _repeated(history, row) if history[-1].ran else ""


def _against_start(history: Sequence[Tried], row: PolicyRow, replace: Mapping[str, str], means: Means) -> str:
    """Of an attempt without ranks: what passes by itself is tried again, however often it has come."""
    last = history[-1]
    if _is_replaced(last, replace) and (len(history) > 1 or (last.unusable_nodes and row.name == "node")):
        return ""
    if last.stayed_away:
        limit = format_duration(means.node_wait)
        return f"{join_words(last.stayed_away)} did not come back within {limit} (--node-wait)"
    if last.refused:
        return "a check of the nodes failed, and would fail again"
    if row.again == "always":
        return ""
    return row.why


def _is_replaced(last: Tried, replace: Mapping[str, str]) -> bool:
    """All that are named or can't go on give their places to others. At a further attempt ranks ran with these
    settings before, so the node is at fault, whatever the label says."""
    named = {*last.blamed, *last.unusable_nodes}
    return bool(named) and all(replace.get(node, node) != node for node in named)


def _same(before: Tried, last: Tried, row: PolicyRow) -> bool:
    """Tell whether both have the same cause at the same step; another node that fails is another fault."""
    if before.verdict.cause != last.verdict.cause or before.step != last.step:
        return False
    if row.replace and before.blamed != last.blamed:
        return False
    return last.step is not None or last.seconds < LIVED


def _replace(last: Tried, row: PolicyRow, means: Means) -> dict[str, str]:
    """Who takes whose place: nodes that can't go on are replaced or reached again, one that is blamed where it can."""
    may = last.blamed if row.replace or not last.ran else ()
    wanted = [*last.unusable_nodes, *(n for n in may if n not in last.unusable_nodes)]
    free = dict(means.spares)
    places = dict[str, str]()
    for node in wanted:
        fitting = [name for name, room in free.items() if room is None or room >= means.ranks.get(node, 0)]
        if fitting:
            places[node] = fitting[0]
            del free[fitting[0]]
        elif node in last.unusable_nodes:
            places[node] = node
    return places


def _left_out(last: Tried, row: PolicyRow, means: Means, replace: Mapping[str, str]) -> tuple[str, ...]:
    """Nodes that lose their place, where the number of nodes may change: lost, or at fault, and none stands in."""
    at_fault = last.blamed if row.replace and len(last.blamed) == 1 else ()
    names = [name for name in dict.fromkeys((*last.gone, *at_fault)) if replace.get(name, name) == name]
    present = [name for name in names if name in means.ranks]
    if means.least is None or len(means.ranks) - len(present) < means.least:
        return ()
    return tuple(present)


def _replacements(replace: Mapping[str, str], attempt: int, means: Means) -> list[str]:
    reasons = [f"{old} was replaced by {new} in attempt {attempt}" for old, new in replace.items() if new != old]
    same = [old for old, new in replace.items() if new == old]
    if same:
        spares = "No spare is left" if means.asked_spares else "The run has no spares (--spares 0)"
        reasons.append(f"{spares}: allranks connects to {join_words(same)} again")
    return reasons
