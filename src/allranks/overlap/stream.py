"""Events of a Chrome trace, one at a time, out of its text in pieces: a trace may be larger than memory (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from allranks.protocol.jsontext import Json

JsonObject = dict[str, Json]

LARGEST = 1 << 26  # characters of one value: what is longer is taken for broken
AFTER_VALUE = frozenset(",:]} \t\r\n")
SEPARATORS = re.compile(r"[\s,]*")
CUT_OFF = "it ends before the trace does"


class BrokenTrace(ValueError):
    """The text is not a trace, or ends in the middle of it."""


class Reader:
    """A window over the text that moves on; `head` has what stands beside the events, complete once they are read."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self.head: JsonObject = {}
        self._pieces = iter(pieces)
        self._text = ""
        self._position = 0
        self._ended = False
        self._decode = json.JSONDecoder(strict=False).raw_decode

    def events(self) -> Iterator[JsonObject]:
        """Yield every event that is an object; raise BrokenTrace at the first place that cannot be read."""
        first = self._next()
        if first == "[":
            yield from self._list()
            return
        if first != "{":
            raise BrokenTrace("not a Chrome trace: it begins with neither { nor [")
        self._position += 1
        while self._next() != "}":
            key = self._value()
            if self._next() != ":":
                raise BrokenTrace("not a Chrome trace: a key without a value")
            self._position += 1
            if key == "traceEvents" and self._next() == "[":
                yield from self._list()
            else:
                self.head[str(key)] = self._value()

    def _list(self) -> Iterator[JsonObject]:
        self._position += 1
        while self._next() != "]":
            event = self._value()
            if isinstance(event, dict):
                yield event
        self._position += 1

    def _next(self) -> str:
        while True:
            separators = SEPARATORS.match(self._text, self._position)
            if separators:
                self._position = separators.end()
            if self._position < len(self._text):
                return self._text[self._position]
            if self._ended:
                raise BrokenTrace(CUT_OFF)
            self._read_on()

    def _value(self) -> Json:
        self._next()
        while True:
            try:
                value: Json
                value, end = self._decode(self._text, self._position)
            except ValueError:
                end = -1
            except RecursionError:
                raise BrokenTrace("a value is nested too deep") from None
            # At the end of a piece, half a number looks like a complete one: 1 of 1.5, 1.5 of 1.5e3.
            if end >= 0 and (self._ended or self._text[end : end + 1] in AFTER_VALUE):
                self._position = end
                return value
            if self._ended:
                raise BrokenTrace(CUT_OFF)
            if len(self._text) - self._position > LARGEST:
                raise BrokenTrace("a value cannot be read")
            self._read_on()

    def _read_on(self) -> None:
        """Read as much again as is held, so that a long value costs no more than a few readings of it."""
        parts = [self._text[self._position :]]
        wanted = max(1, len(parts[0]))
        while wanted > 0 and not self._ended:
            piece = next(self._pieces, None)
            if piece is None:
                self._ended = True
            else:
                parts.append(piece)
                wanted -= len(piece)
        self._text = "".join(parts)
        self._position = 0
