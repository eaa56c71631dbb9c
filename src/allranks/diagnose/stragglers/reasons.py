"""Why a rank comes late: from samples of its stacks and what the kernel has counted meanwhile (pure).

A reason is what the samples show and a usual rank does not, else none is given. What a program does in one rank on
purpose (it saves, it evaluates, it sleeps) is described, and is not a fault of a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allranks.protocol.samples import StackSample, SuspectLook
from allranks.text import format_percent, group

from ..hangs.doing import ActivityKind, Doing, doing, read_sample

THROTTLED = 0.1  # of the time that its control group stood still
NO_CPU = 0.25  # of the time that it was ready to run and did not
TIMES_USUAL = 2.5  # as much as the usual rank has
COLLECTIONS = 3  # full ones of Python's garbage collector between two looks
OFTEN = 0.4  # of the samples in which it did not wait for others
LOADER = "torch/utils/data/"


class Reason(NamedTuple):
    """`words` are the second half of a sentence; `is_of_node`: no program does this to one rank on purpose."""

    words: str
    remedy: str
    is_of_node: bool
    evidence: tuple[str, ...] = ()


class TimeSpent(NamedTuple):
    """How a rank spent the seconds of a look: shares of the time, and what its samples say."""

    seconds: float
    throttled: float
    ready: float
    doings: tuple[Doing, ...]
    samples: tuple[StackSample, ...]

    @property
    def at_work(self) -> Sequence[Doing]:
        """What it did instead of waiting for others."""
        return [doing for doing in self.doings if doing.kind is not ActivityKind.WAITING]


NOTHING_SPENT = TimeSpent(0.0, 0.0, 0.0, (), ())  # no usual rank was sampled


def spent(rank: int, look: SuspectLook | None) -> TimeSpent | None:
    """Read a look; None where there is too little of it."""
    if look is None or len(look.samples) < 3 or len(look.at) != len(look.samples):
        return None
    samples = [read_sample(rank, one) for one in look.samples]
    seconds = max(0.001, look.at[-1] - look.at[0])
    doings = [
        doing(before, after, at - began)
        for before, after, began, at in zip(samples, samples[1:], look.at, look.at[1:], strict=False)
    ]
    ready = max(0.0, samples[-1].ready - samples[0].ready) if samples[0].ready else 0.0
    return TimeSpent(seconds, look.stood / seconds, ready / seconds, tuple(doings), tuple(samples))


def find_reason(
    rank: int,
    node: str,
    looks: Mapping[int, SuspectLook],
    usual_rank: int | None,
    collections: Mapping[int, int],
) -> Reason | None:
    """Find why a rank is late; `usual_rank` is one that is not, sampled at the same time. None where nothing shows.

    `collections` are full ones of Python's garbage collector by rank, since the look before.
    """
    one = spent(rank, looks.get(rank))
    if one is None:
        return None
    usual = NOTHING_SPENT
    usual_collections = 0
    if usual_rank is not None:
        usual = spent(usual_rank, looks.get(usual_rank)) or NOTHING_SPENT
        usual_collections = collections.get(usual_rank, 0)
    return (
        _stopped(one)
        or _throttled(one, usual, looks[rank], node)
        or _by_loader(one, node)
        or _short_of_processors(one, usual, node)
        or _by_collector(one, collections.get(rank, 0), usual_collections)
        or _by_program(one)
    )


def _stopped(one: TimeSpent) -> Reason | None:
    stopped = sum(sample.state in ("T", "t") for sample in one.samples)
    if stopped < 2:
        return None
    words = f"it was stopped by a signal in {stopped} of {len(one.samples)} samples"
    return Reason(words, "find what sends SIGSTOP to it (a debugger, a scheduler that suspends jobs)", True)


def _throttled(one: TimeSpent, usual: TimeSpent, look: SuspectLook, node: str) -> Reason | None:
    if one.throttled < max(THROTTLED, TIMES_USUAL * usual.throttled):
        return None
    return Reason(
        "its CPU is throttled by a quota of its control group",
        f"raise the CPU limit of the job on {node} (cpu.max, cpu.cfs_quota_us, `resources.limits.cpu` of a pod)",
        True,
        (f"{look.throttled} of {look.periods} periods throttled, for {format_percent(min(1.0, one.throttled))}",),
    )


def _by_loader(one: TimeSpent, node: str) -> Reason | None:
    in_loader = [doing for doing in one.at_work if any(LOADER in frame.file for frame in doing.stack)]
    if len(in_loader) < max(2, OFTEN * len(one.at_work)):
        return None
    return Reason(
        f"its data loader keeps it waiting{_place(in_loader)}",
        f"look at the storage and the loader's workers on {node}, or give the loader more of them",
        True,
        (f"in the data loader in {len(in_loader)} of {len(one.doings)} samples",),
    )


def _short_of_processors(one: TimeSpent, usual: TimeSpent, node: str) -> Reason | None:
    if one.ready < max(NO_CPU, TIMES_USUAL * usual.ready):
        return None
    return Reason(
        f"other processes keep the CPUs of {node} busy",
        f"see what else runs on {node}: `ssh {node} top -b -n 1 | head -20`",
        True,
        (f"ready and without a CPU for {format_percent(min(1.0, one.ready))} of the time",),
    )


def _by_collector(one: TimeSpent, collections: int, usual: int) -> Reason | None:
    """Python's garbage collector stops a rank; a full collection looks at all objects (gc.get_stats)."""
    computes = [doing for doing in one.at_work if _word(doing) == "computes"]
    if collections < max(COLLECTIONS, TIMES_USUAL * usual) or len(computes) < max(2, OFTEN * len(one.doings)):
        return None
    return Reason(
        "Python's garbage collector stops it",
        "call gc.freeze() once the model is built, or gc.disable() and then gc.collect() on all ranks at the same step",
        False,
        (f"{collections} full collections between two looks, {usual} on a usual rank",),
    )


def _by_program(one: TimeSpent) -> Reason | None:
    at_work = one.at_work
    if len(at_work) < max(2, OFTEN * len(one.doings)):
        return None
    words = group(at_work, lambda doing: _word(doing)).items()
    word, most = max(words, key=lambda pair: len(pair[1]))
    return Reason(f"it {word}{_place(most)}", "compare what it does there with the other ranks", False)


def _word(doing: Doing) -> str:
    if doing.kind is ActivityKind.BUSY:
        return "reads or writes" if "reads" in doing.why else "computes"
    if doing.why == "sleeping":
        return "sleeps"
    return "is elsewhere"


def _place(doings: Sequence[Doing]) -> str:
    places = Counter(one.at for one in doings if one.at is not None)
    return "".join(f" at {place}" for place, _ in places.most_common(1))
