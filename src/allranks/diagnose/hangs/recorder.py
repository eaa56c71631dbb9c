"""What torch's flight recorders of all ranks say: the earliest unfinished collective, and who is not in it (pure).

A recorder has the last collectives of each process group of its rank, numbered in the order they were called. Ranks
of one group that are at the same number must call the same operation with the same shapes (torch's own analyser,
torch/distributed/flight_recorder, compares alike).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from allranks.protocol.codec import DecodeError, decode
from allranks.protocol.jsontext import Json
from allranks.text import format_size, group, join_words, plural

from ..words import count_ranks, numbers

BYTES = {
    "Float": 4,
    "Double": 8,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Long": 8,
    "Short": 2,
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
}
# Operations whose inputs are of one size on all ranks; lists may be uneven with NCCL, so its all_gather is not here.
EVEN = ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")
DEFAULT = "default_pg"


@dataclass(frozen=True)
class RecordedGroup:
    """A process group; `ranks` are global."""

    name: str
    ranks: tuple[int, ...]
    desc: str = ""

    def __str__(self) -> str:
        """Nothing for the default group."""
        if self.desc == DEFAULT or self.name == "0":
            return ""
        named = f" {self.desc}" if self.desc and self.desc != "undefined" else ""
        return f" of group{named} (ranks {numbers(self.ranks)})"


@dataclass(frozen=True)
class RecorderEntry:
    """One collective of one rank. `what` is the backend's name of it, such as gloo:all_reduce."""

    seq: int
    what: str
    elements: int
    dtype: str
    done: bool

    @property
    def name(self) -> str:
        """all_reduce #17."""
        return f"{self.what.partition(':')[2] or self.what} #{self.seq}"

    @property
    def kind(self) -> tuple[str, int, str]:
        """What has to be the same on all ranks."""
        if self.what == "gloo:all_gather" or self.what.partition(":")[2] in EVEN:
            return (self.what, self.elements, self.dtype)
        return (self.what, 0, "")

    def __str__(self) -> str:
        size = self.elements * BYTES.get(self.dtype, 0)
        return f"{self.name} of {format_size(size)}" if size else self.name


@dataclass(frozen=True)
class Recording:
    """What one rank's recorder has; `error` says why there is nothing."""

    rank: int
    entries: Mapping[RecordedGroup, tuple[RecorderEntry, ...]] = field(default_factory=dict)
    error: str = ""

    def waits(self, group: RecordedGroup) -> RecorderEntry | None:
        """Find the first collective of the group that is not done."""
        return next((e for e in self.entries.get(group, ()) if not e.done), None)

    def at(self, group: RecordedGroup, seq: int) -> RecorderEntry | None:
        """Find the group's collective of that number."""
        return next((e for e in self.entries.get(group, ()) if e.seq == seq), None)

    @property
    def waiting(self) -> RecorderEntry | None:
        """The first that is not done, in any group."""
        return next((e for group in self.entries if (e := self.waits(group)) is not None), None)


class CollectiveFault(enum.Enum):
    """What is wrong with a collective."""

    DIFFERENT = "ranks have called different operations or shapes at one number"
    MISSING = "ranks have not called it, and wait nowhere"
    ORDER = "ranks wait for each other in different groups"
    TOGETHER = "all ranks are in it alike"


@dataclass(frozen=True)
class Account:
    """The collective that everything waits for. `culprits` are not in it, or in another one of that number."""

    case: CollectiveFault
    culprits: tuple[int, ...]
    message: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stall:
    """An unfinished collective: who waits in it, who has not come, who could not answer."""

    group: RecordedGroup
    seq: int
    inside: Mapping[int, RecorderEntry]
    absent: tuple[int, ...]
    silent: tuple[int, ...]

    @property
    def kinds(self) -> list[list[int]]:
        """Ranks by what they call at this number, the most first."""
        ranks_by_kind = group(sorted(self.inside), lambda rank: self.inside[rank].kind)
        return sorted(ranks_by_kind.values(), key=lambda ranks: (-len(ranks), ranks))

    def says(self) -> str:
        """Write `ranks 0 and 1 are in all_gather #17 of 4 KB and rank 2 is in all_reduce #17 of 4 MB`."""
        parts = [
            f"{count_ranks(ranks)} {plural(len(ranks), 'is', 'are')} in {self.inside[ranks[0]]}" for ranks in self.kinds
        ]
        text = f"{join_words(parts)}{self.group}"
        if not self.absent:
            return text
        return f"{text}, {count_ranks(self.absent)} {plural(len(self.absent), 'has', 'have')} not called it"


# -- reading -------------------------------------------------------------------------------------------


class DumpedGroup(NamedTuple):
    """A process group in the answer of a rank's helper (agent/runner_recorder.py)."""

    name: str
    ranks: tuple[int, ...] = ()
    desc: str = ""


class DumpedEntry(NamedTuple):
    """A collective in torch's dump (FlightRecorder.hpp), as far as it is compared."""

    collective_seq_id: int = 0
    profiling_name: str = ""
    process_group: tuple[str, ...] = ()
    is_p2p: bool = False
    state: str | None = None
    retired: bool | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()

    def read(self) -> RecorderEntry:
        """Read it; Gloo's `retired` is done, as its state never says completed. NCCL also retires what timed out."""
        is_nccl = self.profiling_name.startswith("nccl")
        done = self.state == "completed" or (bool(self.retired) and not is_nccl)
        elements = sum(math.prod(shape) for shape in self.input_sizes)
        return RecorderEntry(
            self.collective_seq_id, self.profiling_name, elements, "".join(self.input_dtypes[:1]), done
        )


class DumpedRecorder(NamedTuple):
    """One recorder: NCCL's or Gloo's."""

    entries: tuple[DumpedEntry, ...] = ()


class Dump(NamedTuple):
    """The answer of a rank's helper, which is a thread of the training program."""

    error: str | None = None
    groups: tuple[DumpedGroup, ...] = ()
    recorders: Mapping[str, DumpedRecorder] = {}


def read_recording(rank: int, answer: Mapping[str, Json]) -> Recording:
    """Read the answer of a rank's helper."""
    try:
        dump = decode(Dump, answer)
    except DecodeError:
        return Recording(rank, error="its flight recorder gave a document that cannot be read")
    if dump.error or not dump.recorders:
        return Recording(rank, error=dump.error or "its torch has no flight recorder")
    groups = {g.name: RecordedGroup(g.name, g.ranks, g.desc) for g in dump.groups}
    entries: dict[RecordedGroup, list[RecorderEntry]] = {group: [] for group in groups.values()}
    for item in (item for recorder in dump.recorders.values() for item in recorder.entries):
        group = groups.get("".join(item.process_group[:1]))
        if group is not None and not item.is_p2p:
            entries[group].append(item.read())
    return Recording(rank, {g: tuple(sorted(of_group, key=lambda e: e.seq)) for g, of_group in entries.items()})


# -- judging -------------------------------------------------------------------------------------------


def account(recordings: Sequence[Recording]) -> Account | None:
    """Find the collective that everything waits for; None where no recorder has an unfinished one."""
    by_rank = {r.rank: r for r in recordings if not r.error}
    mute = {r.rank for r in recordings if r.error}  # of ranks that were not asked nothing follows
    stalls = [stall for group in _groups(by_rank.values()) if (stall := _stall(group, by_rank, mute)) is not None]
    if not stalls:
        return None
    unheard = [f"rank {r.rank}: {r.error}" for r in recordings if r.error]
    different = next((s for s in stalls if len(s.kinds) > 1), None)
    if different is not None:
        return Account(CollectiveFault.DIFFERENT, _odd(different.kinds), different.says(), (_line(different), *unheard))
    free = {r for s in stalls for r in (*s.absent, *s.silent) if r not in by_rank or by_rank[r].waiting is None}
    for stall in stalls:
        culprits = tuple(sorted(free & {*stall.absent, *stall.silent}))
        if culprits:
            return Account(CollectiveFault.MISSING, culprits, stall.says(), (_line(stall), *unheard))
    crossed = [s for s in stalls if s.absent]
    if crossed:
        return Account(
            CollectiveFault.ORDER, (), "; ".join(s.says() for s in crossed[:2]), tuple(map(_line, crossed[:3]))
        )
    return Account(CollectiveFault.TOGETHER, (), stalls[0].says(), (_line(stalls[0]), *unheard))


def _groups(recordings: Iterable[Recording]) -> list[RecordedGroup]:
    """List all groups, the default one first."""
    names = {group for r in recordings for group in r.entries}
    return sorted(names, key=lambda g: (g.desc != DEFAULT, len(g.name), g.name, g.ranks))


def _stall(group: RecordedGroup, by_rank: Mapping[int, Recording], mute: Collection[int]) -> Stall | None:
    """Find the earliest collective of a group that a rank waits in; None where none does."""
    heard = {r: by_rank[r] for r in group.ranks if r in by_rank}
    waits = [entry for r in heard.values() if (entry := r.waits(group)) is not None]
    if not waits:
        return None
    seq = min(entry.seq for entry in waits)
    inside = {rank: entry for rank, r in heard.items() if (entry := r.at(group, seq)) is not None}
    behind = tuple(rank for rank, r in heard.items() if max((e.seq for e in r.entries.get(group, ())), default=0) < seq)
    return Stall(group, seq, inside, behind, tuple(r for r in group.ranks if r in mute))


def _odd(kinds: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """List the ranks outside the largest set; none where the two largest are equal."""
    if len(kinds[0]) == len(kinds[1]):
        return ()
    return tuple(sorted(rank for ranks in kinds[1:] for rank in ranks))


def _line(stall: Stall) -> str:
    return f"flight recorder: {stall.says()}"
