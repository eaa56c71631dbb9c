"""From what every rank is doing to the rank that keeps the others waiting (pure).

Rule of thumb: who is not in the collective is at fault, who is in it is a victim. Where all are in one, those at
another place than most are. Stacks say where a rank is; flight recorders say which collective it is that everything
waits for, who has not called it or has called another, and what a program waits for that queues its collectives and
goes on (NCCL).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from allranks.findings import Hang
from allranks.text import group, join_words, plural

from ..words import name_by_node, numbers
from .doing import AT_LOCK, ActivityKind, Doing
from .frontier import CONDITION, PAIRS, Account, CollectiveFault, account, read_account
from .recorder import RankRecording
from .stacks import Stack

STRAGGLER = "straggler"
MISMATCH = "collective-mismatch"
UNEVEN = "uneven-data"
_PROGRESS = (CollectiveFault.MISSING, CollectiveFault.BEHIND)
Names = Mapping[int, str]
Doings = Mapping[int, Doing]


def attribute(
    doings: Doings, ended: Sequence[int], names: Names, recordings: Sequence[RankRecording] = ()
) -> Hang | None:
    """Name the ranks that keep the others waiting; None where no rank waits for another, and none is stopped.

    `ended` are ranks that ended with 0; `names` are nodes by rank.
    """
    recordings = [_standing(recording, doings.get(recording.rank)) for recording in recordings]
    recorded = account(recordings)
    doings = {**doings, **_queued(doings, recordings)}
    waiting = {r: d for r, d in doings.items() if d.kind in (ActivityKind.WAITING, ActivityKind.STARTING)}
    if not waiting:
        stopped = sorted(rank for rank, d in doings.items() if d.kind is ActivityKind.STOPPED)
        return _outside(ActivityKind.STOPPED, stopped, doings, waiting, names, ended) if stopped else None
    hang = _by_stacks(doings, waiting, ended, names, recorded)
    if recorded is None:
        return hang
    return hang._replace(evidence=(*recorded.lines[:1], *hang.evidence, *recorded.lines[1:]))


def _standing(recording: RankRecording, item: Doing | None) -> RankRecording:
    """Leave out isend and irecv where the rank does not wait for one: it sleeps at a lock then, in C++."""
    if recording.waiting is None and item is not None and _may_wait(item, is_on_device=False):
        return recording
    transfers = {
        of_group: tuple(one for one in ones if not one.is_asynchronous)
        for of_group, ones in recording.transfers.items()
    }
    return replace(recording, transfers={of_group: ones for of_group, ones in transfers.items() if ones})


def _queued(doings: Doings, recordings: Sequence[RankRecording]) -> dict[int, Doing]:
    """Find the ranks that wait for a collective without a call of torch.distributed on their stack.

    With NCCL they spin anywhere in the program. With Gloo `work.wait()` of an asynchronous call is C++, and sleeps at
    a lock. Only their recorders tell it.
    """
    waits = {r.rank: entry for r in recordings if (entry := r.waiting) is not None}
    queued = {
        rank: replace(doings[rank], kind=ActivityKind.WAITING, call=entry.name.partition(" ")[0])
        for rank, entry in waits.items()
        if rank in doings and _may_wait(doings[rank], entry.is_on_device)
    }
    for recording in recordings:
        transfer = recording.standing
        if transfer is not None and transfer.is_asynchronous and recording.rank not in queued:
            item = doings[recording.rank]
            queued[recording.rank] = replace(item, kind=ActivityKind.WAITING, call=transfer.name)
    return queued


def _may_wait(item: Doing, is_on_device: bool) -> bool:
    if is_on_device:
        return item.kind in (ActivityKind.ELSEWHERE, ActivityKind.BUSY)
    return item.kind is ActivityKind.ELSEWHERE and item.why == AT_LOCK


def _by_stacks(
    doings: Doings,
    waiting: Doings,
    ended: Sequence[int],
    names: Names,
    recorded: Account | None,
) -> Hang:
    case = recorded.case if recorded is not None else None
    # one that works elsewhere is not at fault where a mismatch holds the ranks
    is_held = recorded is not None and case is CollectiveFault.DIFFERENT and not recorded.is_over
    for kind in _OUTSIDE:
        culprits = sorted(rank for rank, d in doings.items() if d.kind is kind)
        works = kind in (ActivityKind.ELSEWHERE, ActivityKind.BUSY)
        if not culprits or (is_held and works):
            continue
        if recorded is not None and case in (CollectiveFault.MISSING, CollectiveFault.STUCK):
            if set(culprits) & set(recorded.culprits):
                culprits = [rank for rank in recorded.culprits if rank in doings and doings[rank].kind in _OUTSIDE]
            elif case is CollectiveFault.STUCK and works:
                continue
        return _outside(kind, culprits, doings, waiting, names)
    if recorded is not None and case in (CollectiveFault.DIFFERENT, CollectiveFault.STUCK):
        return _recorded(recorded, waiting, doings, names)
    if ended:
        return _ended(sorted(ended), waiting, names)
    blind = [rank for rank, d in doings.items() if d.kind is ActivityKind.UNKNOWN]
    if recorded is not None and (case is CollectiveFault.ORDER or (case in _PROGRESS and not blind)):
        return _recorded(recorded, waiting, doings, names)
    return _apart(doings, waiting, blind, names)


def _recorded(recorded: Account, waiting: Doings, doings: Doings, names: Names) -> Hang:
    """Make the hang that only the recorders show: by their stacks all ranks wait alike."""
    reading = read_account(recorded, names, all_wait=True)
    victims = tuple(rank for rank in waiting if rank not in recorded.culprits)
    message = f"{reading.message}{_stand(recorded.culprits, victims, doings, names)}"
    return Hang(reading.cause, message, reading.remedy, reading.confidence, recorded.culprits, victims)


def _stand(culprits: Sequence[int], others: Sequence[int], doings: Doings, names: Names) -> str:
    """Write `. In the program stand rank 3 on h2 at train.py:88 in save and ranks 0-2 at train.py:91 in step`.

    Of the others at most two places are named. Nothing is said where no stack tells a place.
    """
    parts = []
    for ranks in (culprits, others):
        placed = [rank for rank in ranks if rank in doings and doings[rank].at is not None]
        by_place = group(placed, lambda rank: str(doings[rank].at))
        parts += [f"{_named(of_place, names)} at {place}" for place, of_place in list(by_place.items())[:2]]
    if parts:
        return f". In the program stand {join_words(parts)}"
    return ""


# What is wrong with a rank that is in no collective, how sure that is, and what to do.
_OUTSIDE = {
    ActivityKind.STOPPED: (
        "stopped",
        0.97,
        "send it SIGCONT on {node}, or find what stopped it (a debugger, Ctrl-Z, a cgroup freezer)",
    ),
    ActivityKind.GONE: (
        "a zombie",
        0.9,
        "its process has ended and was not reaped, so read `allranks logs --rank {rank}`",
    ),
    ActivityKind.BLOCKED: (
        "",
        0.85,
        "check the disk or the network file system on {node} with `dmesg; mount; nfsstat`",
    ),
    ActivityKind.ELSEWHERE: (
        "",
        0.85,
        "find out what rank {rank} waits for there (its whole stack is in evidence/stacks of the run directory)",
    ),
    ActivityKind.BUSY: (
        "busy",
        0.7,
        "it still works, so give it time or move the work off the training path. "
        "Evaluate and save on all ranks alike, or without a collective meanwhile",
    ),
}


def _outside(
    kind: ActivityKind,
    culprits: list[int],
    doings: Doings,
    waiting: Doings,
    names: Names,
    ended: Sequence[int] = (),
) -> Hang:
    """Blame the ranks that are in no collective while the others wait in one, or have ended.

    `kind` is that of the first named."""
    _, confidence, remedy = _OUTSIDE[kind]
    by_kind = group(culprits, lambda rank: doings[rank].kind)
    parts = [_says_outside(ranks, doings[ranks[0]], names) for ranks in by_kind.values()]
    first = by_kind[kind][0]
    others = "no other rank goes on"
    if waiting:
        others = _wait(waiting, names)
    elif ended:
        others = f"{_named(ended, names)} ended with code 0"
    return Hang(
        STRAGGLER,
        f"{join_words(parts)}; {others}",
        remedy.format(node=names.get(first, "the node"), rank=first),
        confidence=confidence,
        culprits=tuple(culprits),
        victims=tuple(rank for rank in waiting if rank not in culprits),
        evidence=_evidence(culprits, doings),
        slow=list(by_kind) == [ActivityKind.BUSY],
    )


def _says_outside(ranks: Sequence[int], item: Doing, names: Names) -> str:
    """Write `rank 3 on h2 is busy at train.py:88 in save (it reads or writes)`."""
    does = _OUTSIDE[item.kind][0]
    words = [_named(ranks, names), plural(len(ranks), "is", "are"), does]
    if item.at:
        words.append(f"at {item.at}")
    if item.why and item.kind is not ActivityKind.STOPPED:
        words.append(f"({item.why})" if does or item.at else item.why)
    return " ".join(filter(None, words))


def _ended(ended: list[int], waiting: Doings, names: Names) -> Hang:
    message = f"{_named(ended, names)} ended with code 0 while {_wait(waiting, names)}"
    remedy = "every rank must do the same number of steps, and none may leave early: use drop_last or padding in the "
    remedy += "sampler, or join() for uneven inputs"
    return Hang(UNEVEN, message, remedy, 0.85, tuple(ended), tuple(waiting))


def _apart(doings: Doings, waiting: Doings, blind: list[int], names: Names) -> Hang:
    """Compare the places of the ranks where all that could be sampled wait."""
    groups = group(sorted(waiting), lambda rank: waiting[rank].place())
    if len(groups) == 1 and blind:
        message = f"{_named(blind, names)} could not be sampled, and {_wait(waiting, names)}"
        return Hang("unknown", message, PAIRS, 0.4, tuple(blind), tuple(waiting))
    if len(groups) == 1:
        message = f"all ranks wait in {next(iter(waiting.values()))}: none is behind"
        return Hang("unknown", message, f"the network between them is suspect: {PAIRS}", 0.4, (), tuple(waiting))
    ordered = sorted(groups.values(), key=lambda ranks: (len(ranks), ranks))
    culprits: list[int] = []
    confidence = 0.6
    if len(ordered[0]) < len(ordered[-1]):
        culprits = ordered[0]
        confidence = 0.8
    parts = [f"{_named(ranks, names)} in {waiting[ranks[0]]}" for ranks in ordered]
    return Hang(
        MISMATCH,
        f"ranks wait in different collectives: {join_words(parts)}",
        f"all ranks must call the same collectives in the same order. {CONDITION}",
        confidence=confidence,
        culprits=tuple(culprits),
        victims=tuple(rank for rank in waiting if rank not in culprits),
        evidence=_evidence([group[0] for group in ordered], doings),
    )


def _named(ranks: Iterable[int], names: Names) -> str:
    """Write `ranks 2-3 on h2 and rank 5 on h3`."""
    return name_by_node(ranks, lambda rank: names.get(rank, "?"))


def _wait(waiting: Doings, names: Names) -> str:
    """Write `ranks 0-6 wait in all_reduce (train.py:41 in step)`."""
    who = _named(waiting, names) if len(waiting) <= 2 else f"ranks {numbers(waiting)}"
    places = list(dict.fromkeys(map(str, waiting.values())))
    return f"{who} {plural(len(waiting), 'waits', 'wait')} in {join_words(places, limit=3)}"


def _evidence(ranks: Iterable[int], doings: Doings) -> tuple[str, ...]:
    lines = []
    for rank in list(ranks)[:3]:
        frames = " < ".join(str(frame) for frame in doings[rank].stack[:4])
        lines.append(f"rank {rank}: {frames or doings[rank].why or doings[rank].kind.value}")
    return tuple(lines)


BARRIERS = frozenset({"barrier", "monitored_barrier"})
OUT_OF_DATA = (
    "every rank must do the same number of steps: use drop_last or padding in the sampler, or join() for uneven "
    "inputs. `allranks data audit` counts the batches of every rank"
)


def out_of_data(hang: Hang, doings: Doings, names: Names) -> Hang:
    """Turn a mismatch into uneven data where some ranks wait in a barrier further down in the program than others."""
    waiting = {rank: d for rank, d in doings.items() if d.kind is ActivityKind.WAITING}
    behind_loop = sorted(rank for rank, d in waiting.items() if d.call in BARRIERS)
    in_loop = sorted(waiting.keys() - set(behind_loop))
    if hang.cause != MISMATCH or not behind_loop or not in_loop:
        return hang
    if not all(_is_further(waiting[rank].stack, waiting[other].stack) for rank in behind_loop for other in in_loop):
        return hang
    ended = waiting[behind_loop[0]]
    goes_on = waiting[in_loop[0]]
    message = f"{_named(behind_loop, names)} {plural(len(behind_loop), 'is', 'are')} out of data and "
    message += f"{plural(len(behind_loop), 'waits', 'wait')} in {ended.call} ({ended.at}), while "
    message += f"{_named(in_loop, names)} {plural(len(in_loop), 'is', 'are')} still in {goes_on.call} ({goes_on.at})"
    few = min((behind_loop, in_loop), key=len)
    culprits = hang.culprits or (tuple(few) if len(behind_loop) != len(in_loop) else ())
    return hang._replace(cause=UNEVEN, message=message, remedy=OUT_OF_DATA, culprits=culprits)


def _is_further(one: Stack, other: Stack) -> bool:
    """Tell whether the first stack stands further down in the outermost function in which two stacks part."""
    for frame, of_other in zip(reversed(one), reversed(other), strict=False):
        if (frame.file, frame.function) != (of_other.file, of_other.function):
            return False
        if frame.line != of_other.line:
            return frame.line > of_other.line
    return False
