"""What of the training program's files and datagrams may reach the rest of allranks (no IO).

The text is read by `protocol.jsontext`, with bounds. Here each field is taken with the type that it has, cut where it
is long, and left out where it is something else.
"""

import math
from typing import Any, Dict, List, Optional

from allranks.protocol.jsontext import DecodeError, read_object

MOST_RANKS = 1 << 20
# characters of a text and a traceback; exceptions of a chain
TEXT = 16 << 10
TRACE = 64 << 10
LINKS = 32


# -- values ------------------------------------------------------------------------------------------


def whole(value: Any, low: int = 0, high: int = (1 << 53) - 1) -> Optional[int]:
    """A whole number between two limits; None for anything else, True and False too."""
    return value if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high else None


def number(value: Any) -> Optional[float]:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def text(value: Any, most: int = TEXT) -> str:
    """A text, cut; empty for anything else."""
    return value[:most] if isinstance(value, str) else ""


def fields(value: Any) -> Dict[str, Any]:
    """An object; empty for anything else."""
    return value if isinstance(value, dict) else {}


# -- error files -------------------------------------------------------------------------------------


def error_file(found: Any) -> Optional[Dict[str, Any]]:
    """What a rank's error file says, of torch's form with allranks' own part; None where it says nothing."""
    document = fields(found)
    own = fields(fields(found).get("allranks"))
    clean = {}  # type: Dict[str, Any]
    message = document.get("message")
    if isinstance(message, dict):
        extra = fields(message.get("extraInfo"))
        clean["message"] = {
            "message": text(message.get("message"), TRACE),
            "extraInfo": {
                "py_callstack": text(extra.get("py_callstack"), TRACE),
                "timestamp": text(extra.get("timestamp"), 40),
            },
        }
    elif isinstance(message, str) and message:
        clean["message"] = text(message, TRACE)
    if text(own.get("type")):
        links = own.get("chain")
        chain = [_link(one) for one in (links if isinstance(links, list) else [])[:LINKS] if isinstance(one, dict)]
        clean["allranks"] = dict(
            _link(own),
            schema=1,
            module=text(own.get("module"), 200),
            t=number(own.get("t")),
            rank=whole(own.get("rank")),
            pid=whole(own.get("pid")),
            traceback=text(own.get("traceback"), TRACE),
            chain=chain,
        )
    return clean or None


def _link(one: Dict[str, Any]) -> Dict[str, Any]:
    found = {
        "type": text(one.get("type"), 200),
        "text": text(one.get("text")),
        "file": text(one.get("file"), 4096),
        "line": whole(one.get("line")),
        "function": text(one.get("function"), 200),
    }  # type: Dict[str, Any]
    return dict(found, link=text(one.get("link"), 40)) if "link" in one else found


def names(value: Any, most: int = 64) -> List[str]:
    """The texts of a list, the first of them."""
    return [text(one, 200) for one in (value if isinstance(value, list) else [])[:most] if isinstance(one, str)]


# -- reports -----------------------------------------------------------------------------------------


REPORTED = (("pid", 1, 1 << 31), ("world_size", 0, MOST_RANKS), ("code", -255, 255), ("count", 0, 1 << 31))


def report(data: bytes) -> Dict[str, Any]:
    """A datagram to the agent: who writes there is the training program, whatever it loads, and its launcher."""
    found = read_object(data, 1 << 16)
    event = text(found.get("event"), 40)
    rank = whole(found.get("rank"), 0, MOST_RANKS)
    if not event or rank is None:
        raise DecodeError("expected an event of a rank")
    clean = {"event": event, "rank": rank, "t": number(found.get("t"))}  # type: Dict[str, Any]
    for name, low, high in REPORTED:
        if name in found and found[name] is not None:
            clean[name] = whole(found[name], low, high)
            if clean[name] is None:
                raise DecodeError("%s: expected a number between %d and %d" % (name, low, high))
    if "threads" in found:
        clean["threads"] = names(found["threads"])
    for name in ("backend", "program"):
        if name in found:
            clean[name] = text(found[name], 200)
    return clean
