"""The header that a relay reads before anything else: what it is to be, for which run (pure, Python 3.8)."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple, Union

from .codec import Annotated, DecodeError, decode, encode, one_of
from .jsontext import JsonObject, write_json
from .orders import FileName, RunTag, Seconds
from .records import NamedTuple


class AgentHeader(NamedTuple):
    """Start an agent (mode `agent`), or connect to the one that is there (`attach`).

    `run_tag` is the run tag of its processes; agents with the tags in `ends` are ended first. `engine`: the node is a
    task of an engine's step. What dials from the node (`holder`: pid and start) ends the agent with it. `checks`,
    `tests` and `audit` say what is sent along, `files` name it. The node fills in `holder`, and where the session
    stood: `cwd`."""

    mode: Annotated[str, one_of("agent", "attach")]
    uid: FileName
    node: FileName
    run_tag: RunTag
    lease: Seconds
    grace: Seconds
    node_dir: Optional[str] = None
    ends: Tuple[RunTag, ...] = ()
    engine: bool = False
    holder: Optional[Tuple[int, int]] = None
    checks: Tuple[str, ...] = ()
    tests: bool = False
    audit: bool = False
    files: Tuple[str, ...] = ()
    cwd: str = "/"


class SweepHeader(NamedTuple):
    """List the orphans of earlier runs; or end these processes (pid and start), remove these directories, or name the
    processes outside any run that hold a GPU or the port `foreign`."""

    mode: str = "sweep"
    node_dir: Optional[str] = None
    end: Optional[Tuple[Tuple[int, int], ...]] = None
    remove: Optional[Tuple[str, ...]] = None
    foreign: Optional[int] = None
    files: Tuple[str, ...] = ()


class WantedFile(NamedTuple):
    """A file below the root, and from which byte on it is wanted."""

    path: str
    offset: int = 0


class FetchHeader(NamedTuple):
    """List the files below a directory; or send what is wanted of some of them."""

    root: str
    mode: str = "fetch"
    wanted: Optional[Tuple[WantedFile, ...]] = None
    files: Tuple[str, ...] = ()


class DialHeader(NamedTuple):
    """Dial one of the places (host and port; a host may be a variable, `$NAME`) as the node whose number stands in the
    variable `rank_from`. Limits in seconds. `checks`, `tests`, `audit` and `files` as in an agent's header: the relays
    that the node starts get the same. With `call`, the node is `rank`, and answers this call for a command or a fetch:
    `node_dir` is its own. With `apart` it is `rank` too, comes as `instance`, dials in a process that outlives the ssh
    session and is started with `run_tag`, and only encrypted."""

    places: Tuple[Tuple[str, int], ...]
    rank_from: str
    secret: str
    patience: float
    lease: float
    mode: str = "dial"
    engine: bool = False
    checks: Tuple[str, ...] = ()
    tests: bool = False
    audit: bool = False
    files: Tuple[str, ...] = ()
    call: str = ""
    rank: int = 0
    node_dir: Optional[str] = None
    apart: bool = False
    instance: str = ""
    run_tag: str = ""


Header = Union[AgentHeader, SweepHeader, FetchHeader, DialHeader]

MODES: Dict[str, type] = {
    "agent": AgentHeader,
    "attach": AgentHeader,
    "sweep": SweepHeader,
    "fetch": FetchHeader,
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


def pack_header(header: Header, files: Dict[str, bytes]) -> List[bytes]:
    """Make what a relay reads: its header, which names the files, and these, each behind its length."""
    parts = (write_json(encode(header._replace(files=tuple(files)))), *files.values())
    pieces = []
    for part in parts:
        pieces += [len(part).to_bytes(4, "big"), part]
    return pieces
