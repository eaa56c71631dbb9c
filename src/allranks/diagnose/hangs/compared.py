"""The earliest collective that ranks called unlike each other, whether it has ended or not (pure).

Gloo lets some of them pass: a shorter tensor, or another type of the same size. What follows from it fails elsewhere.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from allranks.protocol.foreign import CalledGroup, ErrorCall
from allranks.text import join_words, plural

from ..candidate import Candidate
from ..words import count_ranks
from .recorder import RecorderEntry, outside_most, ranks_by_call

UNLIKE_SHAPES = "unlike-shapes"  # findings: one operation with different shapes or types, and different operations
UNLIKE_CALLS = "unlike-calls"
MOST_CALLS = 4096  # of a group that are read


def read_called(called: Mapping[int, Sequence[CalledGroup]]) -> dict[int, list[ErrorCall]]:
    """Read the calls that ranks have noted at their end: of groups in which all have noted the same, nothing."""
    by_group: dict[str, dict[int, CalledGroup]] = {}
    for rank, groups in called.items():
        for of_group in groups:
            by_group.setdefault(of_group.group, {})[rank] = of_group
    calls: dict[int, list[ErrorCall]] = {}
    for of_ranks in by_group.values():
        read = {noted: _read_group(noted) for noted in set(of_ranks.values())}
        if len(read) > 1:
            for rank, noted in of_ranks.items():
                calls.setdefault(rank, []).extend(read[noted])
    return calls


def _read_group(noted: CalledGroup) -> list[ErrorCall]:
    try:
        packed = binascii.a2b_base64(noted.sequence)
        data = zlib.decompressobj().decompress(packed, 2 * MOST_CALLS)
    except (ValueError, zlib.error):
        return []
    numbers = struct.unpack(f"<{len(data) // 2}H", data[: len(data) // 2 * 2])
    return [
        ErrorCall(noted.group, seq, *noted.kinds[number])
        for seq, number in enumerate(numbers, noted.first)
        if number < len(noted.kinds)
    ]


def odd_call(
    calls: Mapping[int, Sequence[ErrorCall]], crashed: Collection[int] = (), all_ranks: Collection[int] = ()
) -> Candidate | None:
    """Compare what ranks called at one number of one group; None where they called alike.

    Culprits called it unlike most; there are none where it is open who did. The message says who called what.
    `crashed` are ranks without a record that got more bytes than they expected (Gloo ends those): they called the
    smaller one of two sizes. Where all of `all_ranks` crashed but one, that one has sent it to them.
    """
    unheard = frozenset(crashed) - calls.keys()
    numbered: dict[tuple[str, int], dict[int, RecorderEntry]] = {}
    for rank, of_rank in calls.items():
        for call in of_rank:
            entry = RecorderEntry(call.seq, call.what, call.elements, call.dtype, False)
            numbered.setdefault((call.group, call.seq), {})[rank] = entry
    for _, entries in sorted(numbered.items(), key=lambda item: item[0][1]):
        if len(ranks_by_call(entries)) > 1:
            return _compared(_with_crashed(entries, unheard))
    return _only_sender(frozenset(crashed), frozenset(all_ranks))


def _with_crashed(entries: Mapping[int, RecorderEntry], crashed: Iterable[int]) -> Mapping[int, RecorderEntry]:
    """Add the crashed ranks: they expected the smallest of what others called."""
    smallest = min(entries.values(), key=lambda entry: entry.size or entry.elements)
    if len({entry.what for entry in entries.values()}) > 1:
        return entries
    return {**entries, **dict.fromkeys(crashed, smallest)}


def _compared(entries: Mapping[int, RecorderEntry]) -> Candidate:
    alike = ranks_by_call(entries)
    parts = []
    for ranks in alike:
        entry = entries[ranks[0]]
        parts.append(f"{count_ranks(ranks)} {plural(len(ranks), 'calls', 'call')} {entry.detail}")
    is_shape = len({entry.what for entry in entries.values()}) == 1
    cause = "collective-shape-mismatch" if is_shape else "collective-mismatch"
    return Candidate(cause, 0.8, join_words(parts), culprits=frozenset(outside_most(alike)))


def _only_sender(crashed: frozenset[int], all_ranks: frozenset[int]) -> Candidate | None:
    """Blame the one rank that did not crash, where all others got more than they expected: they agree."""
    senders = all_ranks - crashed
    if len(senders) != 1 or len(crashed) < 2:
        return None
    words = f"{count_ranks(sorted(crashed))} expected less than {count_ranks(sorted(senders))} sent"
    return Candidate("collective-shape-mismatch", 0.8, words, culprits=senders)
