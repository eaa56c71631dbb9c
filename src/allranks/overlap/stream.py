"""Events of a Chrome trace, one at a time, out of its text in pieces: a trace may be larger than memory (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

LARGEST = 1 << 26  # characters of one value: what is longer is taken for broken
AFTER = frozenset(",:]} \t\r\n")
SEPARATORS = re.compile(r"[\s,]*")


class BrokenTrace(ValueError):
    """The text is no trace, or ends in the middle of it."""


class Reader:
    """A window over the text that moves on; `head` has what stands beside the events, complete once they are read."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self.head: dict[str, Any] = {}
        self._pieces = iter(pieces)
        self._text, self._at, self._ended = "", 0, False
        self._decode = json.JSONDecoder(strict=False).raw_decode

    def events(self) -> Iterator[dict[str, Any]]:
        """Every event that is an object; BrokenTrace at the first place that can't be read."""
        first = self._next()
        if first == "[":
            yield from self._list()
            return
        if first != "{":
            raise BrokenTrace("not a Chrome trace: it begins with neither { nor [")
        self._at += 1
        while self._next() != "}":
            key = self._value()
            if self._next() != ":":
                raise BrokenTrace("not a Chrome trace: a key without a value")
            self._at += 1
            if key == "traceEvents" and self._next() == "[":
                yield from self._list()
            else:
                self.head[str(key)] = self._value()

    def _list(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        while self._next() != "]":
            event = self._value()
            if isinstance(event, dict):
                yield event
        self._at += 1

    def _next(self) -> str:
        """The next character that means something; it stays where it is."""
        while True:
            found = SEPARATORS.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                raise BrokenTrace("it ends before the trace does")
            self._more()

    def _value(self) -> Any:
        """The value that begins here, read on until it is whole."""
        self._next()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except ValueError:
                end = -1
            # At the end of a piece, half a number looks like a whole one: 1 of 1.5, 1.5 of 1.5e3.
            if end >= 0 and (self._ended or self._text[end : end + 1] in AFTER):
                self._at = end
                return value
            if self._ended or len(self._text) - self._at > LARGEST:
                raise BrokenTrace("it ends before the trace does" if self._ended else "a value can't be read")
            self._more()

    def _more(self) -> None:
        """Reads as much again as is held, so that a long value costs no more than a few readings of it."""
        parts = [self._text[self._at :]]
        held, got = max(1, len(parts[0])), 0
        while got < held and not self._ended:
            piece = next(self._pieces, None)
            if piece is None:
                self._ended = True
            else:
                parts.append(piece)
                got += len(piece)
        self._text, self._at = "".join(parts), 0
