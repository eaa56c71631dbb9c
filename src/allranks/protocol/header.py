"""The header that a relay reads before anything else: what it is to be, for which run (pure, Python 3.8)."""

from typing import Dict, NamedTuple, Optional, Tuple, Union

from .codec import DecodeError, decode
from .jsontext import JsonObject


class AgentHeader(NamedTuple):
    """Start an agent (mode `agent`), or connect to the one that is there (`attach`).

    `run_tag` is the run tag of its processes; agents with the tags in `ends` are ended first. `engine`: the node is a
    task of an engine's step, whose process (`holder`: pid and start) ends the agent with it. `checks`, `tests` and
    `audit` say what is sent along, `files` name it."""

    mode: str
    uid: str
    node: str
    run_tag: str
    lease: float
    grace: float
    node_dir: Optional[str] = None
    ends: Tuple[str, ...] = ()
    engine: bool = False
    holder: Optional[Tuple[int, int]] = None
    checks: Tuple[str, ...] = ()
    tests: bool = False
    audit: bool = False
    files: Tuple[str, ...] = ()


class ForeignQuestion(NamedTuple):
    """Which processes outside any run hold a GPU, or this port?"""

    port: int = 0


class SweepHeader(NamedTuple):
    """List the orphans of earlier runs; or end these processes (pid and start), remove these directories, or name
    the processes that are in the way."""

    mode: str
    node_dir: Optional[str] = None
    end: Optional[Tuple[Tuple[int, int], ...]] = None
    remove: Optional[Tuple[str, ...]] = None
    foreign: Optional[ForeignQuestion] = None


class DialHeader(NamedTuple):
    """Dial one of the places (host and port; a host may be a variable, `$NAME`) as the node whose number stands in the
    variable `rank_from`. `hello` goes to the coordinator; limits in seconds."""

    mode: str
    places: Tuple[Tuple[str, int], ...]
    rank_from: str
    secret: str
    patience: float
    lease: float
    hello: JsonObject = {}
    engine: bool = False


Header = Union[AgentHeader, SweepHeader, DialHeader]

MODES: Dict[str, type] = {
    "agent": AgentHeader,
    "attach": AgentHeader,
    "sweep": SweepHeader,
    "dial": DialHeader,
}


def read_header(value: JsonObject) -> Header:
    """Decode a header; raise DecodeError."""
    mode = value.get("mode")
    kind = MODES.get(mode) if isinstance(mode, str) else None
    if kind is None:
        raise DecodeError("$.mode: expected one of %s" % ", ".join(MODES))
    header: Header = decode(kind, value)
    return header
