"""Read the pickles in which torch writes its flight recorders, as plain values (pure).

A pickle is a program. This reads the part of it that makes numbers, texts, lists and mappings (pickletools.py of
CPython 3.8 to 3.13 says what each operation does), and refuses what would make an object of a class or call anything.
What it builds is bounded: every list that is taken again from the memo is a copy, and each part of it counts again. So
there are at most `MOST` values, at most some for each byte of the text, and `DEEPEST` levels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import cast

from allranks.protocol.jsontext import DecodeError, Json

MOST = 20_000_000  # values in all
MOST_OF_A_BYTE = 8  # values: a frame that torch takes again is five, in two bytes or more
DEEPEST = 12  # lists and mappings inside each other; torch's have six
DIGITS = 32  # bytes of an integer
_PLAIN = (str, int, float, bool, type(None))


def read_pickle(data: bytes) -> Json:
    """Read a pickle of plain values. Raise DecodeError for anything else, and for what is cut short or too large."""
    try:
        return _Unpickler(data).read()
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, AttributeError, TypeError):
        raise DecodeError("expected a pickle of plain values") from None


class _Mark:
    """Stands on the stack where a list, tuple or mapping begins."""


class _Unpickler:
    """The machine that a pickle drives: a stack, a memo and a place in the text."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}
        self.count = 0
        self.most = min(MOST, MOST_OF_A_BYTE * len(data))

    def read(self) -> Json:
        """Run the operations until the last, and give the value that is left."""
        operations = _OPERATIONS
        data = self.data
        while True:
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                break
            operation = operations.get(code)
            if operation is None:
                raise DecodeError(f"expected a pickle of plain values, got operation {code:#x} at byte {self.at - 1}")
            operation(self)
        value = self.stack.pop()
        _check_depth(value)
        return cast(Json, value)  # no operation makes anything else

    # -- what is read ------------------------------------------------------------------------------------

    def push(self, value: object) -> None:
        """Put a value on the stack."""
        self.count += 1
        if self.count > self.most:
            raise DecodeError(f"expected at most {self.most} values in a pickle of {len(self.data)} bytes")
        self.stack.append(value)

    def take(self, count: int) -> bytes:
        """Take the next bytes."""
        data = self.data[self.at : self.at + count]
        if len(data) < count:
            raise DecodeError("the pickle is cut short")
        self.at += count
        return data

    def number(self, form: str) -> int:
        """Take an integer in one of struct's forms."""
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def integer(self, size: int) -> None:
        """Push an integer of some bytes, the lowest first."""
        if size > DIGITS:
            raise DecodeError(f"expected an integer of at most {DIGITS} bytes, got {size}")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def text(self, size: int) -> None:
        """Push a text of some bytes."""
        self.push(self.take(size).decode("utf-8", "replace"))

    # -- what is made of it ------------------------------------------------------------------------------

    def since_mark(self) -> list[object]:
        """Take everything above the last mark, and the mark."""
        at = len(self.stack) - 1
        while not isinstance(self.stack[at], _Mark):
            at -= 1
            if at < 0:
                raise DecodeError("expected a mark in the pickle")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def last(self, count: int) -> list[object]:
        """Take some values from the stack."""
        if len(self.stack) < count:
            raise DecodeError("expected more values in the pickle")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def append(self, items: list[object]) -> None:
        """Add to the list on the stack."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise DecodeError("expected a list in the pickle")
        target += items

    def set_items(self, items: list[object]) -> None:
        """Add names and values to the mapping on the stack."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise DecodeError("expected a mapping in the pickle")
        for name, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(name, (str, int)):
                raise DecodeError("expected names that are texts or integers in the pickle")
            target[str(name)] = value

    def keep(self, number: int) -> None:
        """Put the value on the stack into the memo too."""
        self.memo[number] = self.stack[-1]

    def recall(self, number: int) -> None:
        """Push a value of the memo: of a list or mapping a copy, so that nothing holds itself."""
        value = self.memo[number]
        self.push(value if isinstance(value, _PLAIN) else self.copy(value, 0))

    def copy(self, value: object, depth: int) -> object:
        """Copy a value with everything in it; each part counts."""
        self.count += 1
        if self.count > self.most or depth > DEEPEST:
            raise DecodeError("the pickle is too large or nested too deeply")
        if isinstance(value, list):
            return [self.copy(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {name: self.copy(item, depth + 1) for name, item in value.items()}
        return value


def _check_depth(value: object) -> None:
    level: list[object] = [value]
    for _ in range(DEEPEST + 1):
        following: list[object] = []
        for item in level:
            if isinstance(item, _Mark):
                raise DecodeError("expected a value in the pickle, got a mark")
            if isinstance(item, list):
                following += item
            elif isinstance(item, dict):
                following += item.values()
        if not following:
            return
        level = following
    raise DecodeError("the pickle is nested too deeply")


_STOP = ord(".")
_OPERATIONS: dict[int, Callable[[_Unpickler], None]] = {
    0x80: lambda reader: _ignore(reader.take(1)),  # PROTO
    0x95: lambda reader: _ignore(reader.take(8)),  # FRAME
    ord("("): lambda reader: reader.push(_Mark()),
    ord("}"): lambda reader: reader.push({}),
    ord("]"): lambda reader: reader.push([]),
    ord(")"): lambda reader: reader.push([]),  # a tuple is a list, as in JSON
    ord("l"): lambda reader: reader.push(reader.since_mark()),
    ord("t"): lambda reader: reader.push(reader.since_mark()),
    0x85: lambda reader: reader.push(reader.last(1)),
    0x86: lambda reader: reader.push(reader.last(2)),
    0x87: lambda reader: reader.push(reader.last(3)),
    ord("a"): lambda reader: reader.append(reader.last(1)),
    ord("e"): lambda reader: reader.append(reader.since_mark()),
    ord("s"): lambda reader: reader.set_items(reader.last(2)),
    ord("u"): lambda reader: reader.set_items(reader.since_mark()),
    ord("N"): lambda reader: reader.push(None),
    0x88: lambda reader: reader.push(True),
    0x89: lambda reader: reader.push(False),
    ord("J"): lambda reader: reader.push(reader.number("<i")),
    ord("K"): lambda reader: reader.push(reader.number("<B")),
    ord("M"): lambda reader: reader.push(reader.number("<H")),
    ord("G"): lambda reader: reader.push(struct.unpack(">d", reader.take(8))[0]),
    0x8A: lambda reader: reader.integer(reader.number("<B")),  # LONG1
    ord("X"): lambda reader: reader.text(reader.number("<I")),
    0x8C: lambda reader: reader.text(reader.number("<B")),  # SHORT_BINUNICODE
    0x8D: lambda reader: reader.text(reader.number("<Q")),  # BINUNICODE8
    ord("q"): lambda reader: reader.keep(reader.number("<B")),
    ord("r"): lambda reader: reader.keep(reader.number("<I")),
    0x94: lambda reader: reader.keep(len(reader.memo)),  # MEMOIZE
    ord("h"): lambda reader: reader.recall(reader.number("<B")),
    ord("j"): lambda reader: reader.recall(reader.number("<I")),
}


def _ignore(data: bytes) -> None:
    """Pass over bytes that say nothing of the value."""
