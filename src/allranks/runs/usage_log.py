"""evidence/usage.jsonl: what the machines of a run did over time, one sample of a node a line.

The file stays below LIMIT however long a run is: the fuller it is, the fewer of the samples are kept, of each node
alike.
"""

from __future__ import annotations

from allranks.protocol.codec import encode, omit_none
from allranks.protocol.jsontext import write_json
from allranks.protocol.records import NamedTuple
from allranks.protocol.samples import NodeUsage

from .directory import RunDirectory
from .regular import append

NAME = "usage.jsonl"
LIMIT = 8 << 20  # bytes
PLENTY = LIMIT // 2  # bytes up to which each sample is kept


@omit_none
class UsageSample(NamedTuple):
    """A line: which node, in which attempt, and what it did."""

    node: str = ""
    attempt: int = 0
    usage: NodeUsage = NodeUsage()


class UsageLog:
    """Writes samples. A full disk loses them: they are not part of a run's result."""

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.path / "evidence" / NAME
        self._left_out: dict[str, int] = {}  # samples of a node since one was kept
        self._size: int | None = None

    def add(self, sample: UsageSample) -> None:
        """Write a sample, or leave it out where the file is full already."""
        if self._size is None:
            self._size = self._open_size()
        every = keeps_every(self._size)
        left_out = self._left_out.get(sample.node, every)
        self._left_out[sample.node] = left_out + 1
        if left_out + 1 < every:
            return
        line = write_json(encode(sample)) + b"\n"
        if self._size + len(line) > LIMIT:
            return
        self._left_out[sample.node] = 0
        try:
            self._size = append(self._path, line)
        except OSError:
            return

    def _open_size(self) -> int:
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            return self._path.stat().st_size
        except OSError:
            return 0


def keeps_every(size: int) -> int:
    """Say how many samples a node gives for one that is kept, where the file has `size` bytes.

    >>> [keeps_every(size) for size in (0, LIMIT // 2, LIMIT * 3 // 4, LIMIT * 7 // 8)]
    [1, 2, 4, 8]
    """
    every = 1
    room = LIMIT - size
    while every < 1 << 16 and room <= LIMIT // (2 * every):
        every *= 2
    return every
