"""Which role of a run waits for which, where one of them stands still (pure).

A rank that waits for another role has a connection to one of its ranks: the same two addresses at both ends. What that
rank does says whether it works, keeps the other waiting, or waits as well, as in a weight sync that both sides begin
in a different order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from allranks.findings import Hang
from allranks.protocol.run_facts import LookedRank, RoleLooked
from allranks.protocol.samples import StackSample

from .attribute import STRAGGLER, Names
from .doing import ActivityKind, Doing, collective_of, doing
from .stacks import LIBRARY, Stack, innermost_of_program, thread_stacks

DEADLOCK = "roles-deadlock"
MOST_SOCKETS = 64  # of a rank that is looked at
FRAMES = 4  # of a stack in a message's evidence
AT_WORK = 0.5  # of the silence: who has shown something since is not stuck
# Files of Python in which a thread waits that has nothing to do, or waits for an answer.
WAITING = (
    "/selectors.py",
    "/socket.py",
    "/ssl.py",
    "/threading.py",
    "/queue.py",
    "/socketserver.py",
    "/concurrent/futures/thread.py",
    "/multiprocessing/connection.py",
)
OF_NETWORK = ("/selectors.py", "/socket.py", "/ssl.py")
NETWORK_WAITS = ("waiting for the network", "waiting for input")
BOTH_WAIT = (
    "let both sides begin a weight sync in the same order, and enter its collectives once the other has said so. The "
    "stacks of both are in evidence/ of the run directory"
)


def look_at(node: str, before: StackSample, after: StackSample, seconds: float, quiet: float) -> LookedRank:
    """Say what a rank does from two samples, `seconds` apart; it is `quiet` for so many seconds."""
    main = doing(before, after, seconds)
    call, stack = _telling_thread(thread_stacks(after.text) or [main.stack])
    at = innermost_of_program(stack)
    sockets = tuple((one.local, one.peer) for one in after.sockets[:MOST_SOCKETS])
    return LookedRank(
        after.rank,
        node,
        call=call,
        at=str(at or ""),
        does=_does(main),
        works=main.kind is ActivityKind.BUSY,
        quiet=round(quiet, 1),
        sockets=sockets,
        stack=tuple(str(frame) for frame in stack[:FRAMES]),
    )


def _does(item: Doing) -> str:
    if item.kind is ActivityKind.UNKNOWN:
        return f"could not be looked at: {item.why}" if item.why else "could not be looked at"
    if item.kind in (ActivityKind.STOPPED, ActivityKind.GONE, ActivityKind.BLOCKED):
        return str(item.kind.value)
    return ""


def _telling_thread(stacks: Sequence[Stack]) -> tuple[str, Stack]:
    for stack in stacks:
        call = collective_of(stack)
        if call:
            return call, stack
    return "", min(stacks, key=_emptiness)


def _emptiness(stack: Stack) -> tuple[bool, bool, bool]:
    own = [frame for frame in stack if not any(part in frame.file for part in LIBRARY)]
    is_idle = not stack or stack[0].file.endswith(WAITING)
    return (not own, is_idle, bool(own) and own[0].function == "<module>")


@dataclass(frozen=True)
class RoleStandstill:
    """A role that stands still: its `hang` as its own ranks explain it, what they do, their samples and nodes by rank.

    `quiet`: the seconds for which it has shown nothing.
    """

    role: str
    hang: Hang | None
    doings: Mapping[int, Doing]
    samples: Mapping[int, StackSample]
    names: Names
    quiet: float


class Between(NamedTuple):
    """What other roles explain of a standstill: a hang, or in `at_work` whom it waits for that works."""

    hang: Hang | None
    at_work: str = ""


class _Edge(NamedTuple):
    """A rank waits for a rank of another role."""

    rank: int
    role: str
    other: LookedRank


def between_roles(still: RoleStandstill, looks: Mapping[str, RoleLooked]) -> Between:
    """Find the role that a standstill waits for; its own hang, where it waits for none."""
    edges = list(_edges(still, looks))
    if not edges:
        return Between(still.hang)
    working = [edge for edge in edges if edge.other.works or edge.other.quiet < AT_WORK * still.quiet]
    if working:
        edge = working[0]
        return Between(None, f"{_own(still, edge)}, and {_other(edge)} is at work: no hang")
    edge = min(edges, key=lambda one: not one.other.call)
    evidence = f"{edge.role} rank {edge.other.rank}: {' < '.join(edge.other.stack) or edge.other.does}"
    there = f"{_other(edge)} {_stands(edge.other)}"
    hang = Hang(
        DEADLOCK,
        f"{still.role} and {edge.role} wait for each other: {_own(still, edge)}, and {there}",
        BOTH_WAIT,
        confidence=0.85,
        culprits=(edge.other.rank,),
        victims=tuple(still.doings),
        evidence=(evidence, *(still.hang.evidence if still.hang is not None else ())),
        nodes=(edge.other.node, ""),
        of_role=edge.role,
    )
    if edge.other.call:
        return Between(hang)
    message = f"{edge.role} keeps {still.role} waiting: {there}, and {_own(still, edge)}"
    remedy = f"see what it does there with `allranks logs --role {edge.role}` (its stacks are in evidence/{edge.role})"
    return Between(hang._replace(cause=STRAGGLER, message=message, remedy=remedy))


def _edges(still: RoleStandstill, looks: Mapping[str, RoleLooked]) -> Iterable[_Edge]:
    """Find who waits for another role. Where ranks of its own are named, these do, or the other is in a collective."""
    facing = {rank for rank, item in still.doings.items() if _faces_others(item)}
    named = set(still.hang.culprits) if still.hang is not None else set()
    if not named <= facing or (still.hang is not None and still.hang.nodes):
        return
    for rank in sorted(facing):
        own = {(one.peer, one.local) for one in still.samples[rank].sockets} if rank in still.samples else set()
        for role, look in looks.items():
            for other in look.ranks:
                if own.intersection(other.sockets) and (not named or rank in named or other.call):
                    yield _Edge(rank, role, other)


def _faces_others(item: Doing) -> bool:
    """Tell whether a rank waits for something outside it: in a collective, or for an answer."""
    if item.kind in (ActivityKind.WAITING, ActivityKind.STARTING):
        return True
    in_socket = bool(item.stack) and item.stack[0].file.endswith(OF_NETWORK)
    return item.kind is ActivityKind.ELSEWHERE and (in_socket or item.why in NETWORK_WAITS)


def _own(still: RoleStandstill, edge: _Edge) -> str:
    item = still.doings[edge.rank]
    waits = f"waits in {item.call}" if item.call else f"waits for an answer of {edge.role}"
    at = f" at {item.at}" if item.at else ""
    return f"rank {edge.rank} of {still.role} on {still.names.get(edge.rank, 'its node')} {waits}{at}"


def _other(edge: _Edge) -> str:
    return f"rank {edge.other.rank} of {edge.role} on {edge.other.node}"


def _stands(other: LookedRank) -> str:
    if other.call:
        return f"waits in {other.call} at {other.at}"
    if other.at:
        return f"stands at {other.at}" + (f" ({other.does})" if other.does else "")
    return other.does or "stands still"
