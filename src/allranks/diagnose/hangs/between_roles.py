"""Which role of a run waits for which, where one of them stands still (pure).

A rank that waits for another role has a connection to one of its ranks: the same two addresses at both ends. What that
rank does says whether it works, keeps the other waiting, or waits as well, as in a weight sync that both sides begin
in a different order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


def between_roles(still: RoleStandstill, looks: Mapping[str, RoleLooked]) -> tuple[Hang | None, str]:
    """Find the role that a standstill waits for: a hang, and whom it waits for that works, where there is one.

    Where it waits for no other role, the hang is its own.
    """
    edges = list(_edges(still, looks))
    if not edges:
        return still.hang, ""
    working = [(rank, role, other) for rank, role, other in edges if other.works or other.quiet < AT_WORK * still.quiet]
    in_calls = [(rank, role, other) for rank, role, other in edges if other.call]
    rank, role, other = (working or in_calls or edges)[0]
    own = _own(still, rank, role)
    named = f"rank {other.rank} of {role} on {other.node}"
    if working:
        return None, f"{own}, and {named} is at work: no hang"
    there = f"{named} {_stands(other)}"
    hang = Hang(
        DEADLOCK,
        f"{still.role} and {role} wait for each other: {own}, and {there}",
        BOTH_WAIT,
        confidence=0.85,
        culprits=(other.rank,),
        victims=tuple(still.doings),
        evidence=(
            f"{role} rank {other.rank}: {' < '.join(other.stack) or other.does}",
            *(still.hang.evidence if still.hang is not None else ()),
        ),
        nodes=(other.node, ""),
        of_role=role,
    )
    if other.call:
        return hang, ""
    message = f"{role} keeps {still.role} waiting: {there}, and {own}"
    remedy = f"see what it does there with `allranks logs --role {role}` (its stacks are in evidence/{role})"
    return hang._replace(cause=STRAGGLER, message=message, remedy=remedy), ""


def _edges(still: RoleStandstill, looks: Mapping[str, RoleLooked]) -> Iterable[tuple[int, str, LookedRank]]:
    """Find who waits for which rank of another role.

    Where ranks of its own are named, these do, or the other is in a collective.
    """
    facing = {rank for rank, item in still.doings.items() if _faces_others(item)}
    named = set(still.hang.culprits) if still.hang is not None else set()
    if not named <= facing or (still.hang is not None and still.hang.nodes):
        return
    for rank in sorted(facing):
        own = {(one.peer, one.local) for one in still.samples[rank].sockets} if rank in still.samples else set()
        for role, look in looks.items():
            for other in look.ranks:
                if own.intersection(other.sockets) and (not named or rank in named or other.call):
                    yield rank, role, other


def _faces_others(item: Doing) -> bool:
    """Tell whether a rank waits for something outside it: in a collective, or for an answer."""
    if item.kind in (ActivityKind.WAITING, ActivityKind.STARTING):
        return True
    in_socket = bool(item.stack) and item.stack[0].file.endswith(OF_NETWORK)
    return item.kind is ActivityKind.ELSEWHERE and (in_socket or item.why in NETWORK_WAITS)


def _own(still: RoleStandstill, rank: int, role: str) -> str:
    item = still.doings[rank]
    waits = f"waits in {item.call}" if item.call else f"waits for an answer of {role}"
    at = f" at {item.at}" if item.at else ""
    return f"rank {rank} of {still.role} on {still.names.get(rank, 'its node')} {waits}{at}"


def _stands(other: LookedRank) -> str:
    if other.call:
        return f"waits in {other.call} at {other.at}"
    if other.at:
        return f"stands at {other.at}" + (f" ({other.does})" if other.does else "")
    return other.does or "stands still"
