"""How ranks, nodes, lines and times are written in a verdict (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from ..incident import Incident, Raised
from ..naming import listed, numbers

LINE = 240
# Torch prints it at every start where addresses have no names (c10d/socket.cpp); it means nothing.
_IDLE = re.compile(r"hostname of the client socket cannot be retrieved")


def one_line(text: str, limit: int = LINE) -> str:
    """The first line that says something, cut to a limit."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def summary(text: str, limit: int = LINE) -> str:
    """What an exception's text says, on one line: without build paths, and with what a headline announces."""
    text = re.sub(r"^\[(enforce fail at )?/\S+/([\w.]+:\d+)\] ?", r"[\2] ", text.strip())
    worker = re.match(r"Caught \w+ in (DataLoader worker process \d+)", text)
    if worker:
        last = re.sub(r"^[\w.]+: ", "", text.rsplit("\n", 1)[-1])
        return one_line(last, limit) + f" (in {worker[1]})"
    differ = re.search(r"differ in the following aspects:\s*(.+)", text, re.DOTALL)
    if differ:
        return f"Detected mismatch between collectives: {one_line(' '.join(differ[1].split()), limit)}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return one_line(f"{lines[0]} {lines[1]}", limit)
    return one_line(text, limit)


def last_lines(text: str, count: int = 3) -> tuple[str, ...]:
    """The last lines of a log that say something; a progress bar counts with its last state."""
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.rstrip().split("\n")]
    telling = [line for line in lines if line.strip() and not _IDLE.search(line)]
    return tuple(one_line(line) for line in telling[-count:])


def name_ranks(incident: Incident, ranks: Iterable[int]) -> str:
    """rank 3 on h2 · ranks 2 and 3 on h2 · ranks 0 and 1 on h1 and ranks 2 and 3 on h2."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        groups.setdefault(incident.node_of(rank), []).append(rank)
    if len(groups) > 4:
        return f"ranks {numbers(r for g in groups.values() for r in g)} (on {len(groups)} nodes)"
    parts = []
    for node, found in groups.items():
        on = f" on {node}" if node else ""
        parts.append(f"rank{'s' if len(found) > 1 else ''} {numbers(found)}{on}")
    return listed(parts)


def name_nodes(nodes: Sequence[str], limit: int = 12) -> str:
    """h1 · h1, h2 and h3 · h1, … and 88 more."""
    return listed(list(nodes) if len(nodes) <= limit else [*nodes[:limit], f"{len(nodes) - limit} more"])


def utc(t: float) -> str:
    """A time of the day that names its zone."""
    return datetime.fromtimestamp(t, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def place(raised: Raised) -> str:
    """train.py:41 in step; empty where it is not known."""
    if not raised.file or raised.line is None:
        return ""
    return _place(raised.file.rsplit("/", 1)[-1], raised.line, raised.function)


def _place(file: str, line: int, function: str) -> str:
    within = f" in {function}" if function and function != "<module>" else ""
    return f"{file}:{line}{within}"


def trace_lines(raised: Raised) -> tuple[str, ...]:
    """Where it was raised (whole path), the source line there, and the exception."""
    found = []
    if raised.file and raised.line is not None:
        found.append(_place(raised.file, raised.line, raised.function))
        head = rf'File "{re.escape(raised.file)}", line {raised.line}, in [^\n]*\n +([^\n]+)'
        source = re.findall(head, raised.traceback)
        found += [one_line(s) for s in source[-1:]]
    elif raised.traceback:
        found += last_lines(raised.traceback, 3)[:-1]
    text = summary(raised.text)
    return (*found, f"{raised.type}: {text}" if text else raised.type)
