"""Which lines of a large log can tell anything: a filter over whole blocks that Python's C loops do (pure).

Two lines of one shape differ in digits and hexadecimal letters alone. A block is stripped of those at once and split
into a set of shapes: most lines of a log have one of few, and a shape without any literal of the rows tells nothing.
Only a block that holds another one is looked at line by line, and only lines of new shapes are searched. What is
kept: `KEEP` lines of each telling shape.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate

from ..signatures import KINDS, NEEDS, VARIABLE, site

KEEP = 1000  # lines of one shape: ranks that say the same
MOST = 60_000  # lines kept of one part of a log
SHAPES = 100_000  # shapes remembered; then it starts over
CHATTY = 50_000  # new shapes in one part: a log of free text, searched for the plainest words only
TAIL = 60  # last lines of a log that are always kept
LONG = 4096  # bytes of a line that are kept
_STRIP = VARIABLE.encode()


def _search(texts: Sequence[bytes]) -> Callable[[bytes], Iterator[int]]:
    """Make a search for the numbers of the texts that hold a word: it goes through all of them at once."""
    joined = b"\n".join(texts)
    starts = [0, *accumulate(len(text) + 1 for text in texts)]

    def numbers_of(word: bytes) -> Iterator[int]:
        at = joined.find(word)
        while at >= 0:
            number = bisect_right(starts, at) - 1
            yield number
            at = joined.find(word, starts[number + 1])

    return numbers_of


def _least(words: Iterable[bytes]) -> tuple[bytes, ...]:
    """Leave out the words that hold another."""
    literals = sorted(set(words))
    numbers_of = _search(literals)
    longer = {number for index, word in enumerate(literals) for number in numbers_of(word) if number != index}
    return tuple(word for at, word in enumerate(literals) if at not in longer)


def _without_digits(word: bytes) -> bytes:
    """Its longest part without digits, as lines of one shape may differ in those; itself where that is too little."""
    part = max(re.split(rb"\d+", word), key=len)
    return part if len(part) > 2 else word


ENDS = tuple(k.encode() for k in KINDS)
LITERALS = frozenset(_without_digits(need.encode()) for need in NEEDS)
FEW = 500  # new shapes: with fewer, to leave literals out takes longer than to search all of them


@cache
def _least_literals() -> tuple[bytes, ...]:
    return _least(LITERALS)


PLAIN = (
    b'rror|xception|Traceback|File "|ailed|NCCL WARN|Xid|illed|imed out|efused|CANCELLED|enied|clients joined|ismatch'
).split(b"|")


class Filter:
    """Takes a part of a log block by block; blocks end at the end of a line.

    A shape is dropped for good where its first line holds none of the literals.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[int, bytes]] = []
        self.lines = 0
        self._left: dict[bytes, int] = {}  # lines of each telling shape that are still kept
        self._silent: set[bytes] = set()
        self._new = 0
        self._of_site = tuple(_without_digits(need.encode()) for row in site.rows() for need in row.needs)

    def feed(self, block: bytes) -> None:
        """Take complete lines; `kept` grows by (number, line), counted from 0."""
        shapes = block.translate(None, _STRIP).split(b"\n")
        if not shapes[-1]:
            shapes.pop()
        wanted = set(shapes) - self._silent
        if wanted:
            self._look(shapes, block.split(b"\n"), wanted)
        self.lines += len(shapes)

    def _look(self, shapes: list[bytes], lines: list[bytes], wanted: set[bytes]) -> None:
        if len(self._silent) > SHAPES:
            self._silent.clear()
        numbers = [at for at, shape in enumerate(shapes) if shape in wanted]
        self._learn([(shapes[at], lines[at]) for at in numbers])
        for at in numbers:
            self._keep(self.lines + at, lines[at], shapes[at])

    def _learn(self, shaped: list[tuple[bytes, bytes]]) -> None:
        new = {shape: line for shape, line in reversed(shaped) if shape not in self._left}
        texts = list(new.values())
        self._new += len(new)
        telling = holding(texts, (*self._words(), *self._of_site))
        for at, (shape, line) in enumerate(new.items()):
            if at in telling or line.rstrip().endswith(ENDS):
                self._left[shape] = KEEP
            else:
                self._silent.add(shape)

    def _words(self) -> Iterable[bytes]:
        if self._new > CHATTY:
            return PLAIN
        return LITERALS if self._new < FEW else _least_literals()

    def _keep(self, number: int, line: bytes, shape: bytes) -> None:
        left = self._left.get(shape, 0)
        if not left or len(self.kept) >= MOST:
            return
        self.kept.append((number, line[:LONG]))
        self._left[shape] = left - 1
        if left == 1:
            del self._left[shape]
            self._silent.add(shape)


def holding(texts: Sequence[bytes], words: Iterable[bytes]) -> set[int]:
    """Find the numbers of the texts that hold a word."""
    numbers_of = _search(texts)
    return {number for word in words for number in numbers_of(word)}


def last_lines(data: bytes, count: int = TAIL) -> list[bytes]:
    """Give the last lines of a log."""
    return data.rstrip(b"\n").rsplit(b"\n", count)[-count:]
