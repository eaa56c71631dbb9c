"""Find and read the flight recorders that torch has written beside logs (IO, bounded).

torch writes one file a rank, without an ending: `_dump_3`, `nccl_trace_rank_3`, `comm_lib_trace_rank_3`, or what
TORCH_FR_DUMP_TEMP_FILE (TORCH_NCCL_DEBUG_INFO_TEMP_FILE before 2.8) says, a pickle or JSON
(torch/csrc/distributed/c10d/DebugInfoWriter). A run of allranks has `flight/rank_003.jsonl`, a dump a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from allranks.diagnose.hangs.pickled import read_pickle
from allranks.diagnose.hangs.recorder import Recording, read_recording, read_torch_dump, with_members, with_silent
from allranks.protocol.jsontext import DecodeError, read_json, read_object

from .regular import open_regular, size_of

LARGEST = 64 << 20  # bytes of one dump; 2,000 collectives with stacks take 5 MB
ALL = 1 << 30  # bytes of all dumps
_NAME = re.compile(
    r"(?i)(?:^|[_.-])(?:dump|trace|flight|fr|rank)[_.-]?(?:rank[_.-]?)?(?P<rank>\d{1,6})(?:\.(?:jsonl?|pkl|pickle))?$"
)
_FIRST = (b"\x80", b"{")  # of a pickle, of a JSON object


@dataclass
class FlightDumps:
    """What torch's recorders say, and the files they stand in. `unread`: why a file could not be read."""

    recordings: list[Recording] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    unread: dict[Path, str] = field(default_factory=dict)


def may_be_dump(path: Path) -> bool:
    """Tell by its name and first byte whether a file may hold a rank's flight recorder."""
    if _NAME.search(path.name) is None:
        return False
    try:
        with open_regular(path) as file:
            return file.read(1) in _FIRST
    except OSError:
        return False


def read_dumps(files: Iterable[Path]) -> FlightDumps:
    """Read the dumps among files; of two of one rank the newer one. What is JSON and none is left for the log scan."""
    dumps = FlightDumps()
    newest: dict[int, tuple[float, Recording]] = {}
    left = ALL
    for path in files:
        if not may_be_dump(path):
            continue
        size = size_of(path)
        try:
            recording = _read(path, min(left, LARGEST))
        except (DecodeError, OSError) as error:
            if not _is_json(path):
                dumps.files.add(path)
                dumps.unread[path] = str(error)
            continue
        left -= size
        dumps.files.add(path)
        written = path.stat().st_mtime
        if recording.rank not in newest or newest[recording.rank][0] <= written:
            newest[recording.rank] = (written, recording)
    recordings = [recording for _, (_, recording) in sorted(newest.items())]
    dumps.recordings = with_silent(with_members(recordings), {_rank_of(path) for path in dumps.unread})
    return dumps


def _read(path: Path, most: int) -> Recording:
    """Read one dump. Raise DecodeError for what is none, or is larger than `most` bytes, and OSError."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise DecodeError(f"expected a dump of at most {most} bytes")
    rank = _rank_of(path)
    if data[:1] == _FIRST[0]:
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


def _is_json(path: Path) -> bool:
    """Tell whether a file begins as JSON does: a log of JSON lines may have a dump's name."""
    with open_regular(path) as file:
        return file.read(1) == _FIRST[1]
