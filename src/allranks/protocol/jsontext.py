"""Read JSON that others wrote, with bounds (pure): files and datagrams of the training program, messages of a peer.

Every reader raises DecodeError and nothing else: for a text that is too large, nested too deeply, not JSON, or with a
number that no field of ours holds (10**400, 1e400, NaN). The words of the error hold nothing of the text.
"""

from __future__ import annotations

import json
import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Dict, Mapping, Sequence, Union

if TYPE_CHECKING:  # a JSON value of which nothing is known yet: isinstance finds out what it is
    Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]
else:
    Json = object  # which the codec takes as it is, wherever a record has a field of this type

JsonObject = Dict[str, Any]  # an object whose fields another module reads, or none

LIMIT = 1 << 20  # bytes or characters of a text
DEEPEST = 64  # nested arrays and objects; no document of ours has more than eight
DIGITS = 40  # of an integer in a text; int() of thousands of digits takes quadratic time
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # one level deeper, and -1 as a signed byte


class DecodeError(ValueError):
    """A text or a value is not what is expected; the words say where it stands and what was expected."""


def read_json(data: Union[bytes, str], limit: int = LIMIT) -> Json:
    """Read one JSON value of at most `limit` bytes or characters."""
    return _read(data, limit, _STRICT)


def read_object(data: Union[bytes, str], limit: int = LIMIT) -> JsonObject:
    """Read one JSON object of at most `limit` bytes or characters."""
    return _as_object(read_json(data, limit))


def read_metrics(data: Union[bytes, str], limit: int = LIMIT) -> JsonObject:
    """Read a row of a program's metrics: NaN and Infinity, which Python's json writes of a loss, are None."""
    return _as_object(_read(data, limit, _OF_METRICS))


def _read(data: Union[bytes, str], limit: int, decoder: json.JSONDecoder) -> Json:
    if len(data) > limit:
        raise DecodeError("expected a JSON text of at most %d bytes, got %d" % (limit, len(data)))
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        _check_depth(text)
        value: Json = decoder.decode(text)
        return value
    except DecodeError:
        raise
    except UnicodeDecodeError:
        raise DecodeError("expected UTF-8") from None
    except (ValueError, RecursionError):
        raise DecodeError("expected JSON") from None


def _as_object(value: Json) -> JsonObject:
    if not isinstance(value, dict):
        raise DecodeError("expected a JSON object")
    return value


def write_json(value: Json) -> bytes:
    """Write a JSON value without spaces, as UTF-8."""
    return _WRITER.encode(value).encode()


def _check_depth(text: str) -> None:
    """Refuse what is nested too deep before the reader recurses; quick where there are few brackets at all."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    outside_strings = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    steps = "".join(outside_strings).encode("utf-8", "replace").translate(_STEPS, _NO_BRACKETS)
    if max(accumulate(memoryview(steps).cast("b")), default=0) > DEEPEST:
        raise DecodeError("expected JSON of at most %d levels" % DEEPEST)


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise DecodeError("expected a number of at most %d digits" % DIGITS)
    return int(digits)


def _real(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise DecodeError("expected a finite number")
    return number


def _no_number(name: str) -> float:
    raise DecodeError("expected a finite number, got %s" % name)


_WRITER = json.JSONEncoder(separators=(",", ":"))
_STRICT = json.JSONDecoder(parse_int=_integer, parse_float=_real, parse_constant=_no_number)
_OF_METRICS = json.JSONDecoder(parse_int=_integer, parse_float=_real, parse_constant=lambda name: None)
