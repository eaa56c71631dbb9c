"""What of the training program's files and datagrams may reach the rest of allranks (pure).

The text is read by `jsontext`, with bounds. Here each field is taken with the type that it has, cut where it is long,
and left out where it is something else.
"""

from __future__ import annotations

import re
from typing import Optional, Tuple, TypeVar

from .codec import Annotated, DecodeError, decode, decode_each, decode_parts, encode, omit_empty, spread, within
from .jsontext import Json, JsonObject, read_object
from .orders import MOST_PATH, Rank
from .orders import NAME as HOST_NAME
from .records import NamedTuple

Fields = TypeVar("Fields", bound=NamedTuple)

# characters of a text and a traceback; exceptions of a chain
TEXT = 16 << 10
TRACE = 64 << 10
LINKS = 32
NAME = 200  # characters of a type, a function, a program
THREADS = 64
CALLS = 64
CALLED_GROUPS = 64
CALL_KINDS = 512
# characters of a field, by its name; others have TEXT
LONGEST = {
    "type": NAME,
    "module": NAME,
    "function": NAME,
    "group": NAME,
    "what": NAME,
    "dtype": NAME,
    "program": NAME,
    "at": NAME,
    "meets": NAME,
    "event": 40,
    "link": 40,
    "timestamp": 40,
    "file": MOST_PATH,
    "traceback": TRACE,
    "message": TRACE,
    "py_callstack": TRACE,
}


def cut(record: Fields) -> Fields:
    """Cut the texts of a record to the length that their field may have."""
    shorter = {}
    for name, value in record._asdict().items():
        if isinstance(value, str) and len(value) > LONGEST.get(name, TEXT):
            shorter[name] = value[: LONGEST.get(name, TEXT)]
    return record._replace(**shorter) if shorter else record


def clean_name(name: str) -> str:
    """Give the name that a host has for itself; empty where it is none: it stands in file names, lines and commands."""
    return name if re.fullmatch(HOST_NAME, name) else ""


# -- error files -------------------------------------------------------------------------------------


class ErrorExtra(NamedTuple):
    """torchelastic's own facts of an exception."""

    py_callstack: str = ""
    timestamp: str = ""


@omit_empty("link")
class ErrorLink(NamedTuple):
    """An exception that another one came from."""

    type: str = ""
    text: str = ""
    file: str = ""
    line: Optional[int] = None
    function: str = ""
    link: str = ""


class ErrorCall(NamedTuple):
    """A collective that a rank called, as its flight recorder has it; `elements` of all its inputs."""

    group: str = ""
    seq: int = 0
    what: str = ""
    elements: int = 0
    dtype: str = ""


class CallKind(NamedTuple):
    """What ranks have to call alike at one number of a group."""

    what: str = ""
    elements: int = 0
    dtype: str = ""


class CalledGroup(NamedTuple):
    """The collectives of a process group that a rank's recorder has at its end, in short.

    `group`: equal for the same group on all ranks; `first`: the number of the first; `sequence`: for each number from
    there on which of `kinds` it was, as little-endian 16-bit numbers, deflated, in base64. 65535: it is not recorded.
    """

    group: str = ""
    first: int = 0
    kinds: Tuple[CallKind, ...] = ()
    sequence: str = ""


@spread("raised")
@omit_empty("calls")
class ErrorDetails(NamedTuple):
    """What allranks' runner adds to an error file. `calls` are its newest collectives, the oldest first."""

    raised: ErrorLink = ErrorLink()
    schema: int = 1
    module: str = ""
    t: Optional[float] = None
    rank: Optional[int] = None
    pid: Optional[int] = None
    traceback: str = ""
    chain: Tuple[ErrorLink, ...] = ()
    calls: Tuple[ErrorCall, ...] = ()


def clean_error(value: Json) -> Optional[JsonObject]:
    """Give what a rank's error file says, of torch's form with allranks' own part; None where it says nothing."""
    if not isinstance(value, dict):
        return None
    clean: JsonObject = {}
    message = value.get("message")
    if isinstance(message, dict):
        text = message.get("message")
        clean["message"] = {
            "message": text[:TRACE] if isinstance(text, str) else "",
            "extraInfo": encode(cut(decode_parts(ErrorExtra, message.get("extraInfo")))),
        }
    elif isinstance(message, str) and message:
        clean["message"] = message[:TRACE]
    details = _details(value.get("allranks"))
    if details.raised.type:
        clean["allranks"] = encode(details)
    return clean or None


def _details(value: Json) -> ErrorDetails:
    if not isinstance(value, dict):
        return ErrorDetails()
    links = value.get("chain")
    outermost = dict(value, chain=(), calls=(), schema=1)
    chain = []
    for link in (links if isinstance(links, list) else [])[:LINKS]:
        if isinstance(link, dict):
            chain.append(cut(decode_parts(ErrorLink, link)))
    calls = value.get("calls")
    recorded = [decode_parts(ErrorCall, call) for call in (calls if isinstance(calls, list) else [])[-CALLS:]]
    details = cut(decode_parts(ErrorDetails, outermost))
    return details._replace(raised=cut(details.raised), chain=tuple(chain), calls=tuple(map(cut, recorded)))


def clean_called(value: Json) -> Tuple[CalledGroup, ...]:
    """Give the groups that a rank has noted at its end, each with what it may have."""
    groups = []
    for group in decode_each(CalledGroup, value)[:CALLED_GROUPS]:
        kinds = tuple(cut(kind) for kind in group.kinds[:CALL_KINDS])
        groups.append(cut(group)._replace(kinds=kinds))
    return tuple(groups)


def error_time(error: Optional[JsonObject]) -> Optional[float]:
    """Return when the exception of a clean error file was raised, by the clock of its node; None: not known."""
    return decode_parts(ErrorDetails, (error or {}).get("allranks")).t


# -- reports -----------------------------------------------------------------------------------------

LONGEST_LIMIT = 1e10  # seconds


@omit_empty()
class ReportMessage(NamedTuple):
    """The runner's word on a rank (init-entered, initialised, destroyed, never-joined, raised, leaving,
    threads-ended), or on a process that its program has started (below); a launcher's (alone, launched); the program's
    (saves); or what the agent sees (`main-gone`, became).

    `code` and `threads` are of a program that leaves: its exit code, and the threads that its process waits for;
    `program` is what a rank has become by exec; `at` is where it has called destroy_process_group. `limit`: seconds
    after which its process group gives up a collective. `place` and `meets` are of a process below: its rank in its
    own world, and where that world meets."""

    event: str
    rank: Rank
    t: Optional[float] = None
    pid: Optional[Annotated[int, within(1, 1 << 31)]] = None
    world_size: Optional[Rank] = None
    code: Optional[Annotated[int, within(-255, 255)]] = None
    threads: Tuple[str, ...] = ()
    program: str = ""
    at: str = ""
    limit: Optional[Annotated[float, within(0, LONGEST_LIMIT)]] = None
    place: Optional[Rank] = None
    meets: str = ""


def read_report(data: bytes) -> ReportMessage:
    """Read a datagram to the agent: who writes there is the training program, whatever it loads, and its launcher."""
    return check_report(decode(ReportMessage, read_object(data, 1 << 16)))


def check_report(report: ReportMessage) -> ReportMessage:
    """Give a report with its texts cut; raise DecodeError where it is none."""
    if not report.event:
        raise DecodeError("expected an event of a rank")
    return cut(report)._replace(threads=tuple(name[:NAME] for name in report.threads[:THREADS]))
