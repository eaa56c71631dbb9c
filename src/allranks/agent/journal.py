"""The journal of a node: what happened there, one JSON object a line, for the processes that come after the agent.

It holds what these read and nothing else. A program may report 16,384 times, which was 201 MB here.
"""

from __future__ import annotations

import os
from typing import Dict, Mapping, Optional, Tuple, Union

from allranks.protocol.codec import DecodeError, Vocabulary
from allranks.protocol.jsontext import JsonObject, read_object, write_json
from allranks.protocol.messages import (
    MESSAGES,
    AttemptSummary,
    ExitMessage,
    Message,
    RankSummary,
    StartedMessage,
)
from allranks.protocol.processes import AgentBegun, RemainingProcess
from allranks.protocol.records import NamedTuple

from .files import open_left, read_ends

NAME = "journal.jsonl"
LIMIT = 64 << 20  # bytes of its end, where the newest stands
FIRST = 64 << 10  # bytes of its beginning, which says who began it
LINE_LIMIT = 1 << 20


class DroppedBytes(NamedTuple):
    """Bytes dropped in all, by stream."""

    streams: Dict[str, int]
    t: float


class AgentDeath(NamedTuple):
    """The agent has ended but by its release: how, and what its supervisor could not end."""

    how: str
    t: float
    left: Tuple[RemainingProcess, ...] = ()


Entry = Union[AgentBegun, DroppedBytes, AgentDeath]
ENTRIES: Vocabulary[Entry] = Vocabulary(
    "event",
    {
        "agent": AgentBegun,
        "drops": DroppedBytes,
        "agent-death": AgentDeath,
    },
)


class Journal:
    """Adds entries of this process, and its messages of how ranks began and ended."""

    def __init__(self, node_dir: str) -> None:
        path = os.path.join(node_dir, NAME)
        self._fd = open_left(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._may_be_cut = os.fstat(self._fd).st_size > 0  # by the process before this one

    def note(self, entry: Entry) -> None:
        """Append an entry."""
        self._write(ENTRIES.write(entry))

    def keep(self, message: Message) -> None:
        """Append a message, where it is of those that are read again."""
        if isinstance(message, (StartedMessage, ExitMessage)):
            self._write(MESSAGES.write(message))

    def _write(self, value: JsonObject) -> None:
        """Append a line; a full disk loses it or its end, and nothing of the next one, and never the run."""
        line = write_json(value) + b"\n"
        if self._may_be_cut:
            line = b"\n" + line
        try:
            self._may_be_cut = os.write(self._fd, line) < len(line)
        except OSError:
            pass


class Past(NamedTuple):
    """What a journal tells: the newest entry of each kind, and the last attempt."""

    begun: Optional[AgentBegun] = None
    death: Optional[AgentDeath] = None
    dropped: Mapping[str, int] = {}
    attempt: AttemptSummary = AttemptSummary(0, {}, True)


def read_journal(node_dir: str) -> Past:
    """Read the journal of a node; a line that was cut short is skipped."""
    past = Past()
    attempt = 0
    ranks: Dict[int, RankSummary] = {}
    for line in read_ends(os.path.join(node_dir, NAME), FIRST, LIMIT).splitlines():
        try:
            value = read_object(line, LINE_LIMIT)
            entry = MESSAGES.read(value) if "type" in value else ENTRIES.read(value)
        except DecodeError:
            continue
        if isinstance(entry, AgentBegun):
            past = past._replace(begun=past.begun or entry)
        elif isinstance(entry, AgentDeath):
            past = past._replace(death=entry)
        elif isinstance(entry, DroppedBytes):
            past = past._replace(dropped=entry.streams)
        elif isinstance(entry, StartedMessage):
            if entry.attempt > attempt:
                attempt = entry.attempt
                ranks = {}
            if entry.attempt == attempt:
                ranks[entry.rank] = RankSummary(entry.pid)
        elif isinstance(entry, ExitMessage) and entry.attempt == attempt and entry.rank in ranks:
            ranks[entry.rank] = ranks[entry.rank]._replace(exit=entry)
    return past._replace(attempt=AttemptSummary(attempt, ranks, ending=True))
