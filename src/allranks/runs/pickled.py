"""Read the pickles in which torch writes its flight recorders, as plain values.

A pickle is a program. Python's own reader runs it here without a class to make or a function to call: that leaves
numbers, texts, lists, tuples and mappings. What it built is copied into lists and mappings, in bounds: a list that is
taken again from the memo is copied again, and each part of it counts. So there are at most `MOST` values, at most some
for each byte of the text, and `DEEPEST` levels.
"""

from __future__ import annotations

import io
import pickle
from typing import NoReturn

from allranks.protocol.jsontext import DecodeError, Json

MOST = 20_000_000  # values in all
MOST_OF_A_BYTE = 8  # values: a frame that torch takes again is five, in two bytes or more
DEEPEST = 12  # lists and mappings inside each other; torch's have six
BITS = 256  # of an integer


class _ClasslessUnpickler(pickle._Unpickler):  # noqa: SLF001
    """Python's reader in Python: that in C makes a memo as large as the greatest number that a pickle names."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise DecodeError(f"expected a pickle of plain values, got {module}.{name}")


def read_pickle(data: bytes) -> Json:
    """Read a pickle of plain values. Raise DecodeError for anything else, and for what is cut short or too large."""
    try:
        value = _ClasslessUnpickler(io.BytesIO(data)).load()
    except DecodeError:
        raise
    except Exception as error:
        raise DecodeError(f"expected a pickle of plain values: {error}") from None
    return _Copy(min(MOST, MOST_OF_A_BYTE * len(data))).of(value, 0)


class _Copy:
    """Copies plain values; counts them."""

    def __init__(self, most: int) -> None:
        self.left = most

    def of(self, value: object, depth: int) -> Json:
        """Copy a value with everything in it."""
        self.left -= 1
        if self.left < 0 or depth > DEEPEST:
            raise DecodeError("the pickle is too large or nested too deeply")
        if isinstance(value, dict):
            if not all(isinstance(name, (str, int)) for name in value):
                raise DecodeError("expected names that are texts or integers in the pickle")
            return {str(name): self.of(item, depth + 1) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(item, depth + 1) for item in value]
        if isinstance(value, (str, float, bool, type(None))) or (isinstance(value, int) and value.bit_length() <= BITS):
            return value
        raise DecodeError(f"expected a pickle of plain values, got {type(value).__name__}")
