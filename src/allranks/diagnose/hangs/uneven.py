"""Ranks that ran out of data: they wait in a barrier behind the loop that the others are still in (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from allranks.findings import Hang
from allranks.text import plural

from ..words import name_by_node
from .attribute import MISMATCH, UNEVEN, Names
from .doing import ActivityKind, Doing
from .stacks import Stack

BARRIERS = frozenset({"barrier", "monitored_barrier"})
REMEDY = (
    "every rank must do the same number of steps: use drop_last or padding in the sampler, or join() for uneven "
    "inputs. `allranks data audit` counts the batches of every rank"
)


def out_of_data(hang: Hang, doings: Mapping[int, Doing], names: Names) -> Hang:
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
    return hang._replace(cause=UNEVEN, message=message, remedy=REMEDY, culprits=culprits)


def _is_further(one: Stack, other: Stack) -> bool:
    """Tell whether the first stack stands further down in the outermost function in which two stacks part."""
    for frame, of_other in zip(reversed(one), reversed(other), strict=False):
        if (frame.file, frame.function) != (of_other.file, of_other.function):
            return False
        if frame.line != of_other.line:
            return frame.line > of_other.line
    return False


def _named(ranks: list[int], names: Names) -> str:
    return name_by_node(ranks, lambda rank: names.get(rank, "?"))
