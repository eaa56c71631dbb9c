"""JSON values and bytes that are not expected, made of what is expected."""

import copy
import json
import random
from typing import Any

NASTY: list[Any] = [
    None, True, False, 0, 1, -1, 7, 1 << 31, 1 << 63, 1 << 64, -(1 << 64), 10**400, 0.5, -0.5, 1e308, float("inf"),
    float("nan"), "", "0", "x" * 5000, "../../etc/passwd", "/etc/passwd", "\x1b[2J", "\0", "a\nb", "ä☃", "-x;y", "--o",
    "127.0.0.1", "169.254.169.254", "::1", [], [[]], [0], ["a"] * 3, [None] * 50, {}, {"": 0}, {"a": {"a": {}}},
    {"0/0/0": -1}, {"LD_PRELOAD": "x"},
]  # fmt: skip


def mutated(message: Any, rng: random.Random) -> Any:
    """A message with one to three of its parts changed, wherever they are."""
    made = copy.deepcopy(message)
    for _ in range(rng.randrange(1, 4)):
        made = _changed(made, rng, 3)
    return made


def _changed(value: Any, rng: random.Random, depth: int) -> Any:
    inner = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inner or depth == 0 or rng.random() < 0.15:
        return copy.deepcopy(rng.choice(NASTY))
    key = rng.choice(inner)
    if isinstance(value, dict) and rng.random() < 0.1:
        value.pop(key)
    elif isinstance(value, dict) and rng.random() < 0.1:
        value[rng.choice(["extra", "path", "argv", ""])] = copy.deepcopy(rng.choice(NASTY))
    else:
        value[key] = _changed(value[key], rng, depth - 1)
    return value


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Bytes that were cut, changed, repeated or made longer on their way."""
    found = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        kind, at = rng.randrange(5), rng.randrange(len(found) + 1)
        if kind == 0:
            del found[at:]
        elif kind == 1 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            found[at:at] = rng.randbytes(rng.randrange(1, 40))
        elif kind == 3:
            found[at:at] = found[: rng.randrange(1, 60)]
        else:
            found[:] = rng.randbytes(rng.randrange(1, 200))
    return bytes(found)


def hostile_json(rng: random.Random) -> bytes:
    """A text where one JSON object is expected: too deep, too long a number, no JSON, no object."""
    deep, digits = rng.choice((65, 1000, 60_000)), rng.choice((19, 41, 5000))
    return rng.choice((
        b"[" * deep, b'{"a":' * deep, b'{"type":"x","a":' + b"[" * deep + b"]" * deep + b"}", b"]" * deep,
        b'{"t":1' + b"0" * digits + b"}", b'{"t":-' + b"9" * digits + b"}", b'{"t":1e%d}' % digits, b'{"t":NaN}',
        b'{"t":-Infinity}', b'{"type":' + json.dumps(rng.choice(NASTY)).encode() + b"}", b"\xff\xfe", b"", b"null",
        b'"' * deep, b'"' + b"\\" * deep, b'{"\\ud800":"\\udfff"}', b"\0" * 9, '{"t":"٣²"}'.encode(),
        b"{" + b" " * deep, rng.randbytes(rng.randrange(200)),
    ))  # fmt: skip
