"""Exceptions of ranks: what an error file or a traceback says of each, and of those it came from (pure).

An exception has links, the outermost first: its cause or context, theirs, the first member of a group, and what a
worker process raised, whose traceback stands in the text of the exception that carried it over (torch:
multiprocessing/spawn.py, _utils.py ExceptionWrapper; CPython: multiprocessing/pool.py, concurrent/futures/process.py).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from allranks.protocol.codec import decode_parts
from allranks.protocol.foreign import ErrorDetails, ErrorExtra
from allranks.protocol.jsontext import Json

HEADER = "Traceback (most recent call last):\n"
LINKS = 16  # as many as the runner writes (agent/runner.py, CHAIN_LIMIT)
# What CPython prints between two tracebacks of a chain (Lib/traceback.py).
JOINTS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_JOINT = re.compile(
    r"\n(?:The above exception was the direct cause|During handling of the above exception)[^\n]{0,60}:\n"
)
_FRAME = re.compile(r'  File "([^"\n]+)", line (\d{1,9}), in ([^\n]+)')
_LAST = re.compile(r"([A-Za-z_][\w.]*)(?::(?: (.*))?)?\Z")
_THREAD = re.compile(r"^Exception in thread ([^\n]{1,200}?):\n(?=Traceback)", re.MULTILINE)
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|^<")
# Exceptions that carry a worker's traceback over, and where they say the worker is.
_WORKERS = (
    (re.compile(r"Caught \w+ in ([^\n]{1,80}?)\.\n"), "{}"),
    (re.compile(r"-- Process (\d+) terminated with the following error"), "process {} that it spawned"),
)


@dataclass(frozen=True)
class ExceptionLink:
    """One exception. `worker`: which worker process raised it. `line` is None where the place is not known."""

    type: str
    text: str = ""
    file: str = ""
    line: int | None = None
    function: str = ""
    worker: str = ""

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.type.rsplit(".", 1)[-1]


class ErrorMessage(NamedTuple):
    """The part `message` of torchelastic's error file (elastic/multiprocessing/errors/error_handler.py)."""

    message: str = ""
    extraInfo: ErrorExtra = ErrorExtra()


@dataclass(frozen=True)
class Raised(ExceptionLink):
    """The uncaught exception of a rank, as its error file or its log tells it. `chain` has the further links."""

    traceback: str = ""
    chain: tuple[ExceptionLink, ...] = ()
    pid: int | None = None
    thread: str = ""

    @classmethod
    def from_error_file(cls, error: Mapping[str, Json]) -> Raised | None:
        """Read allranks' own part, else torchelastic's; None where neither is there."""
        ours = decode_parts(ErrorDetails, error.get("allranks"))
        if ours.raised.type:
            links = [ExceptionLink(*link[:5]) for link in (ours.raised, *ours.chain)]
            return replace(_as_raised(links, ours.traceback), pid=ours.pid)
        message = error.get("message")
        of_torch = decode_parts(ErrorMessage, {"message": message} if isinstance(message, str) else message)
        if not of_torch.message:
            return None
        kind, _, text = of_torch.message.partition(": ")
        if not kind.isidentifier():
            kind = "Exception"
            text = of_torch.message
        trace = of_torch.extraInfo.py_callstack
        first, *chain = read_traceback(trace) or [ExceptionLink(kind)]
        return _as_raised([replace(first, type=kind, text=text), *chain], trace)

    @property
    def links(self) -> tuple[ExceptionLink, ...]:
        """This exception and all that it came from, the innermost last; a worker's stands after its carrier."""
        links = [*_opened(ExceptionLink(self.type, self.text, self.file, self.line, self.function))]
        for link in self.chain:
            links += _opened(link if link.file else self._placed(link))
        return tuple(links[:LINKS])

    def _placed(self, link: ExceptionLink) -> ExceptionLink:
        """Add the place from the traceback: older error files name no place in their chain."""
        same = (one for one in read_traceback(self.traceback) if one.name == link.name)
        place = next((one for one in same if one.text[:80] == link.text[:80]), None)
        if place is None:
            return link
        return replace(link, file=place.file, line=place.line, function=place.function)


def carries_worker(link: ExceptionLink) -> bool:
    """Tell whether the text of an exception is mostly a worker's traceback, so that it says nothing itself."""
    return HEADER in link.text


def read_traceback(text: str) -> list[ExceptionLink]:
    """Read the exceptions of a printed traceback, the outermost first; empty where none can be read."""
    start = text.find(HEADER)
    if start < 0:
        return []
    blocks = [_read_block(block) for block in _JOINT.split(text[start:])]  # innermost first
    links = [replace(link, text="\n".join([link.text, *rest]).strip('"\n ')) for link, rest in filter(None, blocks)]
    return links[::-1][:LINKS]


def _read_block(block: str) -> tuple[ExceptionLink, list[str]] | None:
    """Read one traceback: frames, then the exception on a line that is not indented. Give the lines after it, too."""
    lines = block[block.find(HEADER) + len(HEADER) :].split("\n")
    for at, line in enumerate(lines):
        match = _LAST.match(line)  # no blank and no indented line
        if match:
            file, number, function = innermost(_FRAME.findall("\n".join(lines[:at])))
            link = ExceptionLink(match[1], match[2] or "", file, int(number) if number else None, function)
            return link, lines[at + 1 :]
    return None


def _opened(link: ExceptionLink) -> Iterator[ExceptionLink]:
    yield link
    at = link.text.find(HEADER)
    if at < 0:
        return
    worker = _worker(link.text[:at])
    for one in read_traceback(link.text[at:]):
        yield from _opened(replace(one, worker=worker))


def _worker(head: str) -> str:
    for pattern, words in _WORKERS:
        match = pattern.search(head)
        if match:
            return words.format(match[1])
    return "a worker process"


def is_of_library(file: str) -> bool:
    """Tell whether a file of a traceback is a library's, not the user's own."""
    return _LIBRARY.search(file) is not None


def innermost(frames: Sequence[tuple[str, str, str]]) -> tuple[str, str, str]:
    """Choose of (file, line, function) the last in the user's own code, else the last; empty texts without any."""
    of_user = [frame for frame in frames if not is_of_library(frame[0])]
    return [("", "", ""), *(of_user or frames)][-1]


# -- logs --------------------------------------------------------------------------------------------------

_PREFIX = re.compile(r"^(\[\w+\]:?|\[[^\]\n]{1,40} \d+\]|\d+:) ?", re.MULTILINE)
AFTER = 5  # lines that may follow a traceback at the end of a log
# What the interpreter, logging and asyncio print of exceptions that end nothing.
_ASIDE = re.compile(
    r"^(?:Exception ignored|Error in atexit|--- Logging error|(?:Task|Future) exception was never)[^\n]{0,300}\n"
    r"(?:future: [^\n]{0,500}\n)?(?=Traceback)",
    re.MULTILINE,
)


def raised_in_log(tail: str) -> Raised | None:
    """Read the exception of a traceback at the very end of a log, for programs without an error file."""
    text = _PREFIX.sub("", tail)
    for aside in reversed(list(_ASIDE.finditer(text))):
        if text.rfind(HEADER) == aside.end():
            text = text[: aside.start()]
    last = text.rfind(HEADER)
    if last < 0:
        return None
    last_link = _to_end(text, last)
    if last_link is None:
        return None
    start = _chain_start(text, last)
    earlier = read_traceback(text[start:last] + HEADER)
    threads = [head[1] for head in _THREAD.finditer(text, max(0, start - 300)) if head.end() == start]
    return _as_raised([last_link, *earlier], text[start:].rstrip(), "".join(threads[:1]))


def _as_raised(links: Sequence[ExceptionLink], traceback: str, thread: str = "") -> Raised:
    return Raised(**vars(links[0]), traceback=traceback, chain=tuple(links[1:]), thread=thread)


def _to_end(text: str, start: int) -> ExceptionLink | None:
    """Read the exception of the traceback that begins at `start`; None where more than a few lines follow it.

    Its text is the first line and the indented ones after it.
    """
    link, rest = _read_block(text[start:]) or (None, [])
    if link is None or len([line for line in rest if line.strip()]) > AFTER:
        return None
    indented = itertools.takewhile(lambda line: line[:1].isspace(), rest)
    return replace(link, text="\n".join([link.text, *indented]))


def _chain_start(text: str, last: int) -> int:
    start = last
    for _ in range(LINKS):
        before = text[:start].rstrip("\n")
        line = before[before.rfind("\n") + 1 :]
        if line not in JOINTS:
            return start
        earlier = before.rfind(HEADER)
        if earlier < 0:
            return start
        start = earlier
    return start


def raised_in_thread(tail: str) -> Raised | None:
    """Read the last exception that ended a thread and not the program, by `threading.excepthook`'s words in a log."""
    text = _PREFIX.sub("", tail)
    heads = list(_THREAD.finditer(text))
    if not heads:
        return None
    block = text[heads[-1].end() :]
    links = read_traceback(_first_traceback(block))
    if not links:
        return None
    return _as_raised(links, "", heads[-1][1])


def _first_traceback(block: str) -> str:
    """Cut a text behind the chain of tracebacks at its beginning: what follows the program printed later."""
    lines = block.split("\n")
    for at, line in enumerate(lines):
        indented = line[:1].isspace() or not line or line.startswith("Traceback (most recent")
        if indented or line in JOINTS:
            continue
        following = next((k for k in lines[at + 1 :] if k), "")
        if following not in JOINTS:
            return "\n".join(lines[: at + 1])
    return block
