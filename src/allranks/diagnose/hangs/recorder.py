"""What torch's flight recorders of all ranks hold, as records (pure). `frontier.py` judges them.

A recorder has the last collectives of each process group of its rank, numbered in the order they were called, and its
sends and receives. Ranks of one group that are at the same number must call the same operation with the same shapes
(torch's own analyser, torch/distributed/flight_recorder, compares alike).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from allranks.protocol.codec import DecodeError, decode, decode_each
from allranks.protocol.jsontext import Json
from allranks.text import format_size, group, plural

from ..words import numbers
from .stacks import Frame, innermost_of_program

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
EVEN = (
    "all_reduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "_all_gather_base",
    "all_gather_into_tensor_coalesced",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
)
IN_PLACE = ("all_reduce", "allreduce_coalesced")  # their result has the shape and the type of what goes in
DEFAULT = "default_pg"


@dataclass(frozen=True)
class RecordedGroup:
    """A process group; `ranks` are global."""

    name: str
    ranks: tuple[int, ...] = ()
    desc: str = ""

    def __str__(self) -> str:
        """Nothing for the default group."""
        if self.desc == DEFAULT or self.name == "0":
            return ""
        named = f" {self.desc}" if self.desc and self.desc != "undefined" else ""
        return f" of group{named} (ranks {numbers(self.ranks)})"


@dataclass(frozen=True)
class RecorderEntry:
    """One collective of one rank. `what` is the backend's name of it, such as gloo:all_reduce.

    `elements` and `dtype` are of its inputs, `result` and `result_dtype` of its outputs (0 and "" where they are not
    recorded).

    `order` counts all calls of the rank; `at` is the program's frame.
    """

    seq: int
    what: str
    elements: int
    dtype: str
    done: bool
    order: int = 0
    at: Frame | None = None
    result: int = 0
    result_dtype: str = ""

    @property
    def name(self) -> str:
        """all_reduce #17."""
        return f"{self.operation} #{self.seq}"

    @property
    def operation(self) -> str:
        """The name without its backend."""
        return self.what.partition(":")[2] or self.what

    @property
    def kind(self) -> tuple[str, int, str, int, str]:
        """What has to be the same on all ranks."""
        if self.operation == "reduce":  # its root alone has a result
            return (self.what, self.elements, self.dtype, 0, "")
        if self.what == "gloo:all_gather" or self.operation in EVEN:
            return (self.what, self.elements, self.dtype, self.result, self.result_dtype)
        return (self.what, 0, "", 0, "")

    @property
    def is_on_device(self) -> bool:
        """Tell whether a device carries it (NCCL, RCCL, XCCL): the program queues it and goes on."""
        return is_on_device(self.what)

    @property
    def fits_itself(self) -> bool:
        """Tell whether its outputs fit its inputs (torch's analyser: flight_recorder/components/types.py, Op.match)."""
        if self.operation not in IN_PLACE or not self.result:
            return True
        return (self.elements, self.dtype) == (self.result, self.result_dtype)

    @property
    def size(self) -> int:
        """Give its bytes; 0 where the type is not known."""
        return self.elements * BYTES.get(self.dtype, 0)

    def __str__(self) -> str:
        if self.size:
            return f"{self.name} of {format_size(self.size)}"
        return self.name

    @property
    def detail(self) -> str:
        """all_reduce #17 of 4,096 Float elements."""
        words = f"{self.name} of {_elements(self.elements, self.dtype)}"
        if self.result and (self.elements, self.dtype) != (self.result, self.result_dtype):
            return f"{words} into {_elements(self.result, self.result_dtype)}"
        return words


def is_on_device(what: str) -> bool:
    """Tell by the backend's name of a call whether a device carries it: of torch's recorders only Gloo's are not."""
    return not what.startswith("gloo")


def _elements(count: int, dtype: str) -> str:
    """Write `4,096 Float elements`."""
    return " ".join(filter(None, (f"{count:,}", dtype, plural(count, "element"))))


class Transfer(NamedTuple):
    """A send or a receive of one rank that is not done. Ranks are global; the rest is as in `RecorderEntry`.

    `elements` and `dtype` are of the tensor, 0 and "" where they are not recorded. `number` counts those of one rank
    to or from one peer with one `tag`, 0 where nothing counts them. `is_asynchronous`: isend or irecv, which holds the
    rank only where it waits for it.
    """

    source: int
    target: int
    is_send: bool
    order: int = 0
    at: Frame | None = None
    elements: int = 0
    dtype: str = ""
    tag: int = 0
    number: int = 0
    is_asynchronous: bool = False

    @property
    def peer(self) -> int:
        """The rank at the other end."""
        if self.is_send:
            return self.target
        return self.source

    @property
    def amount(self) -> str:
        """`4,096 Float elements`."""
        return _elements(self.elements, self.dtype)

    @property
    def name(self) -> str:
        """`send to rank 3`, for a message."""
        if self.is_send:
            return f"send to rank {self.target}"
        return f"recv from rank {self.source}"


# What the sends or receives of one rank have in common: the peer (-1: any rank), whether they are sends, and the tag.
TransferEnds = tuple[int, bool, int]


@dataclass(frozen=True)
class RankRecording:
    """What one rank's recorder has; `error` says why there is nothing. `transfers` are those that are not done.

    `posted` counts all sends and receives that there have been, where something counts them.
    """

    rank: int
    entries: Mapping[RecordedGroup, tuple[RecorderEntry, ...]] = field(default_factory=dict)
    error: str = ""
    transfers: Mapping[RecordedGroup, tuple[Transfer, ...]] = field(default_factory=dict)
    posted: Mapping[RecordedGroup, Mapping[TransferEnds, int]] = field(default_factory=dict)

    @property
    def standing(self) -> Transfer | None:
        """A send or a receive that is not done; None where there is none."""
        return next((transfer for of_group in self.transfers.values() for transfer in of_group), None)

    def waits(self, group: RecordedGroup) -> RecorderEntry | None:
        """Find the first collective of the group that is not done."""
        return next((e for e in self.entries.get(group, ()) if not e.done), None)

    def at(self, group: RecordedGroup, seq: int) -> RecorderEntry | None:
        """Find the group's collective of that number."""
        return next((e for e in self.entries.get(group, ()) if e.seq == seq), None)

    def reached(self, group: RecordedGroup) -> int:
        """Give the highest number that the rank has called in a group; 0 where it has called none."""
        return max((e.seq for e in self.entries.get(group, ())), default=0)

    @property
    def waiting(self) -> RecorderEntry | None:
        """The first collective that is not done, in any group."""
        unfinished = [e for group in self.entries if (e := self.waits(group)) is not None]
        return min(unfinished, key=lambda e: e.order, default=None)

    @property
    def stands_at(self) -> RecorderEntry | Transfer | None:
        """The first call that is not done, of collectives, sends and receives."""
        calls: list[RecorderEntry | Transfer] = [t for of_group in self.transfers.values() for t in of_group]
        if self.waiting is not None:
            calls.append(self.waiting)
        return min(calls, key=lambda call: call.order, default=None)


# -- reading -------------------------------------------------------------------------------------------


class DumpedEntry(NamedTuple):
    """A collective, a send or a receive in torch's dump (FlightRecorder.hpp), as far as it is compared."""

    collective_seq_id: int = 0
    profiling_name: str = ""
    process_group: tuple[str, ...] = ()
    is_p2p: bool = False
    state: str | None = None
    retired: bool | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    record_id: int = 0
    p2p_seq_id: int = 0
    frames: Json = None

    @property
    def is_done(self) -> bool:
        """Tell whether it has ended. Gloo's `retired` is done, as its state never says completed.

        NCCL also retires what timed out.
        """
        return self.state == "completed" or (bool(self.retired) and not is_on_device(self.profiling_name))

    @property
    def number(self) -> tuple[str, bool, int]:
        """Give what the operations of one coalesced call have in common."""
        return (
            "".join(self.process_group[:1]),
            self.is_p2p,
            self.p2p_seq_id if self.is_p2p else self.collective_seq_id,
        )

    @property
    def inputs(self) -> tuple[int, str]:
        """The elements that go in, and their type."""
        return sum(map(math.prod, self.input_sizes)), "".join(self.input_dtypes[:1])

    @property
    def outputs(self) -> tuple[int, str]:
        """The elements that come out, and their type."""
        return sum(map(math.prod, self.output_sizes)), "".join(self.output_dtypes[:1])

    def read(self, done: bool) -> RecorderEntry:
        """Read a collective."""
        elements, dtype = self.inputs
        result, result_dtype = self.outputs
        return RecorderEntry(
            seq=self.collective_seq_id,
            what=self.profiling_name,
            elements=elements,
            dtype=dtype,
            done=done,
            order=self.record_id,
            at=None if done else self._place(),
            result=result,
            result_dtype=result_dtype,
        )

    def transfer(self, group: RecordedGroup) -> Transfer | None:
        """Read a send or a receive, which names ranks of its group; None for what it cannot be read from."""
        match = _TRANSFER.fullmatch(self.profiling_name)
        if match is None or max(int(match["rank"]), int(match["peer"])) >= len(group.ranks):
            return None
        rank = group.ranks[int(match["rank"])]
        peer = group.ranks[int(match["peer"])]
        is_send = match["arrow"] == "->"
        source, target = (rank, peer) if is_send else (peer, rank)
        elements, dtype = self.inputs if is_send else self.outputs
        return Transfer(source, target, is_send, self.record_id, self._place(), elements=elements, dtype=dtype)

    def _place(self) -> Frame | None:
        frames = decode_each(DumpedFrame, self.frames)
        return innermost_of_program([Frame(frame.filename, frame.line, frame.name) for frame in frames])


class DumpedFrame(NamedTuple):
    """A call in the stack of an entry; JSON dumps have none."""

    name: str = ""
    filename: str = ""
    line: int = 0


class ConfiguredGroup(NamedTuple):
    """A process group in a file that torch wrote; `ranks` is a text, `[0, 1]`."""

    desc: str = ""
    ranks: str = ""


class TorchDump(NamedTuple):
    """One recorder, NCCL's or Gloo's: an answer of its rank, or a file that torch wrote (DebugInfoWriter), as a pickle
    or as JSON. Files alone have `pg_config`."""

    pg_config: Mapping[str, ConfiguredGroup] = {}
    entries: tuple[DumpedEntry, ...] = ()


class DumpedTransfer(NamedTuple):
    """Sends, or receives, with one peer (its global rank) and one tag.

    One that a rank waits in, by its frame, or may wait for has a `number`, 0: it is the newest. A count has `total`.
    """

    group: str
    peer: int
    is_send: bool
    tag: int = 0
    number: int = 0
    is_blocking: bool = False
    total: int = 0

    @property
    def ends(self) -> TransferEnds:
        """What they have in common."""
        return self.peer, self.is_send, self.tag


class Dump(NamedTuple):
    """The answer of a rank's helper, which is a thread of the training program."""

    error: str | None = None
    groups: tuple[RecordedGroup, ...] = ()
    recorders: Mapping[str, TorchDump] = {}
    transfers: tuple[DumpedTransfer, ...] = ()
    posted: tuple[DumpedTransfer, ...] = ()


# ProcessGroupNCCL::pointToPoint: `nccl:send 0->3`, `nccl:recv 0<-3`, by the ranks in the group, the own one first.
_TRANSFER = re.compile(r"\w+:(send|recv) (?P<rank>\d{1,6})(?P<arrow>->|<-)(?P<peer>\d{1,6})")


def ranks_by_call(entries: Mapping[int, RecorderEntry]) -> list[list[int]]:
    """List ranks that called alike together, the most first."""
    by_kind = group(sorted(entries), lambda rank: entries[rank].kind)
    return sorted(by_kind.values(), key=lambda ranks: (-len(ranks), ranks))


def outside_most(alike: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """List the ranks outside the largest set; none where the two largest are equal."""
    if len(alike) < 2 or len(alike[0]) == len(alike[1]):
        return ()
    return tuple(sorted(rank for ranks in alike[1:] for rank in ranks))


def read_recording(rank: int, answer: Mapping[str, Json]) -> RankRecording:
    """Read the answer of a rank's helper."""
    try:
        dump = decode(Dump, answer)
    except DecodeError:
        return RankRecording(rank, error="its flight recorder gave a document that cannot be read")
    if dump.error or not dump.recorders:
        return RankRecording(rank, error=dump.error or "its torch has no flight recorder")
    recording = _recording(rank, dump.groups, [recorder.entries for recorder in dump.recorders.values()])
    by_name = {g.name: g for g in dump.groups}
    posted: dict[RecordedGroup, dict[TransferEnds, int]] = {}
    for row in dump.posted:
        if row.group in by_name:
            posted.setdefault(by_name[row.group], {})[row.ends] = row.total
    known = [one for one in dump.transfers if one.group in by_name]
    by_group = group(known, lambda one: by_name[one.group])
    dumped = {g: tuple(_transfer(rank, one, posted.get(g, {})) for one in ones) for g, ones in by_group.items()}
    return replace(recording, transfers={**dumped, **recording.transfers}, posted=posted)


def _transfer(rank: int, one: DumpedTransfer, posted: Mapping[TransferEnds, int]) -> Transfer:
    number = one.number or posted.get(one.ends, 0)
    ends = (rank, one.peer) if one.is_send else (one.peer, rank)
    return Transfer(*ends, one.is_send, tag=one.tag, number=number, is_asynchronous=not one.is_blocking)


def read_torch_dump(rank: int, document: Json) -> RankRecording:
    """Read a file that torch wrote. Raise DecodeError for what is none.

    Groups whose ranks it does not say (torch 2.13 with Gloo) have none: `with_members` completes them.
    """
    dump = decode(TorchDump, document)
    if not dump.pg_config and not dump.entries:
        raise DecodeError("expected a dump of torch's flight recorder, with pg_config or entries")
    groups = {
        name: RecordedGroup(name, tuple(int(number) for number in re.findall(r"\d{1,6}", config.ranks)), config.desc)
        for name, config in dump.pg_config.items()
    }
    for entry in dump.entries:
        name, desc = (*entry.process_group, "", "")[:2]
        groups.setdefault(name, RecordedGroup(name, (), desc))
    return _recording(rank, groups.values(), [dump.entries])


def with_members(recordings: Sequence[RankRecording]) -> list[RankRecording]:
    """Give groups of which no dump says the ranks those that have called something there; the default group has all."""
    members: dict[RecordedGroup, list[int]] = {}
    for recording in recordings:
        for of_group in recording.entries:
            if not of_group.ranks:
                members.setdefault(of_group, []).append(recording.rank)
    everyone = tuple(range(max((r.rank for r in recordings), default=-1) + 1))
    with_ranks = {
        of_group: replace(of_group, ranks=everyone if of_group.desc == DEFAULT else tuple(sorted(ranks)))
        for of_group, ranks in members.items()
    }
    return [
        replace(r, entries={with_ranks.get(of_group, of_group): entries for of_group, entries in r.entries.items()})
        for r in recordings
    ]


def _recording(rank: int, groups: Iterable[RecordedGroup], recorders: Iterable[Sequence[DumpedEntry]]) -> RankRecording:
    by_name = {group.name: group for group in groups}
    entries: dict[RecordedGroup, list[RecorderEntry]] = {group: [] for group in by_name.values()}
    transfers: dict[RecordedGroup, list[Transfer]] = {}
    for items in recorders:
        for item, done in _with_ends(items):
            of_group = by_name.get("".join(item.process_group[:1]))
            if of_group is None:
                continue
            if not item.is_p2p:
                entries[of_group].append(item.read(done))
            elif not done and (transfer := item.transfer(of_group)) is not None:
                transfers.setdefault(of_group, []).append(transfer)
    return RankRecording(
        rank,
        {g: tuple(sorted(of_group, key=lambda e: e.seq)) for g, of_group in entries.items()},
        transfers={g: tuple(of_group) for g, of_group in transfers.items()},
    )


def _with_ends(entries: Sequence[DumpedEntry]) -> list[tuple[DumpedEntry, bool]]:
    """Tell of each entry whether it is done.

    The operations of one coalesced call (batch_isend_irecv) have one number and no state of their own: their end is
    the entry that torch adds behind them. A dump of what is active lacks it once it is done.
    """
    by_number = group(entries, lambda entry: entry.number)
    read = []
    for of_number in by_number.values():
        ends = [entry for entry in of_number if entry.profiling_name.endswith("coalesced")]
        is_coalesced = len(of_number) > 1 and is_on_device(of_number[0].profiling_name)
        if is_coalesced:
            read += [(entry, all(end.is_done for end in ends)) for entry in of_number]
        else:
            read += [(entry, entry.is_done) for entry in of_number]
    return read


def with_silent(recordings: Sequence[RankRecording], unread: Collection[int] = ()) -> list[RankRecording]:
    """Add the ranks that have left no dump, where most of the job's have left one that could be read.

    Of those whose dump could not be read (`unread`) nothing follows.
    """
    members = {rank for r in recordings for group in r.entries for rank in group.ranks}
    absent = sorted(members - {r.rank for r in recordings} - {*unread})
    if not absent or (len(absent) + len(unread)) * 2 >= len(members):
        return list(recordings)
    return [*recordings, *(RankRecording(rank, error="it has left no dump") for rank in absent)]
