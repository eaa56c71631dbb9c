"""Find and read the flight recorders that torch has written beside logs (IO, bounded).

torch writes one file a rank, without an ending: `_dump_3`, `nccl_trace_rank_3`, `comm_lib_trace_rank_3`, or what
TORCH_FR_DUMP_TEMP_FILE (TORCH_NCCL_DEBUG_INFO_TEMP_FILE before 2.8) says, a pickle or JSON
(torch/csrc/distributed/c10d/DebugInfoWriter). A run of allranks has `flight/rank_003.jsonl`, a dump a line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from allranks.diagnose.hangs.pickled import read_pickle
from allranks.diagnose.hangs.recorder import Recording, read_recording, read_torch_dump, with_members, with_silent
from allranks.protocol.jsontext import DecodeError, read_json, read_object

from .regular import open_regular

LARGEST = 64 << 20  # bytes of one dump; 2,000 collectives with stacks take 5 MB
ALL = 1 << 30  # bytes of all dumps
_NAME = re.compile(
    r"(?i)(?:^|[_.-])(?:dump|trace|flight|fr|rank)[_.-]?(?:rank[_.-]?)?(?P<rank>\d{1,6})(?:\.(?:jsonl?|pkl|pickle))?$"
)
PICKLE = b"\x80"  # its first byte
_FIRST = (PICKLE, b"{")


@dataclass
class FlightDumps:
    """What torch's recorders say, and the files they stand in. `unread`: why a file could not be read."""

    recordings: list[Recording] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    unread: dict[Path, str] = field(default_factory=dict)


def is_named_as_dump(path: Path) -> bool:
    """Tell whether a file's name is that of a rank's flight recorder."""
    return _NAME.search(path.name) is not None


def begins_as_dump(first: bytes) -> bool:
    """Tell by its first byte whether a file may hold a flight recorder."""
    return first[:1] in _FIRST


def read_dumps(files: Iterable[Path]) -> FlightDumps:
    """Read the dumps among files; of two of one rank the newer one. What is JSON and none is left for the log scan.

    A file is opened once, and read only where its name and its first byte are those of a dump.
    """
    dumps = FlightDumps()
    newest: dict[int, tuple[float, Recording]] = {}
    left = ALL
    for path in files:
        if not is_named_as_dump(path):
            continue
        first = b""
        try:
            with open_regular(path) as file:
                first = file.read(1)
                if not begins_as_dump(first):
                    continue
                data = first + file.read(min(left, LARGEST))
                written = os.fstat(file.fileno()).st_mtime
            recording = _read(path, data, min(left, LARGEST))
        except (DecodeError, OSError) as error:
            if first == PICKLE:
                dumps.files.add(path)
                dumps.unread[path] = str(error)
            continue
        left -= len(data)
        dumps.files.add(path)
        if recording.rank not in newest or newest[recording.rank][0] <= written:
            newest[recording.rank] = (written, recording)
    recordings = [recording for _, (_, recording) in sorted(newest.items())]
    dumps.recordings = with_silent(with_members(recordings), {_rank_of(path) for path in dumps.unread})
    return dumps


def _read(path: Path, data: bytes, most: int) -> Recording:
    """Read one dump. Raise DecodeError for what is none, or is larger than `most` bytes."""
    if len(data) > most:
        raise DecodeError(f"expected a dump of at most {most} bytes")
    rank = _rank_of(path)
    if data[:1] == PICKLE:
        return read_torch_dump(rank, read_pickle(data))
    if path.suffix == ".jsonl":
        return read_recording(rank, read_object(_last_line(data), LARGEST))
    return read_torch_dump(rank, read_json(data, LARGEST))


def _rank_of(path: Path) -> int:
    match = _NAME.search(path.name)
    if match is None:
        raise DecodeError("expected a name that ends with a rank")
    return int(match["rank"])


def _last_line(data: bytes) -> bytes:
    return data.rstrip(b"\n").rpartition(b"\n")[2]
