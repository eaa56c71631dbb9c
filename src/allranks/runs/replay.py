"""A run as JSON lines, as `join --json` prints it on node 0, and the run directory that is made of them elsewhere."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, TextIO

from allranks.protocol.codec import decode_parts, document_line, needs, omit_empty
from allranks.protocol.frames import RANK_LOG, Stream
from allranks.protocol.jsontext import DecodeError, Json, read_object
from allranks.protocol.run_facts import AttemptStart, Fact, JoinProgress, RunEnd, Stamped, read_line, write_line

from .directory import DOCUMENT_LIMIT, RunDirectory
from .documents import OVER, NodeEntry, ResultDocument, RunOpened, StatusDocument, result_record
from .logs import LogWriter
from .opening import write_nodes, write_status
from .regular import size_of
from .view import View


@needs("node", "rank")
@omit_empty("data", "base64")
class RankOutput(NamedTuple):
    """Bytes of a rank's log from `offset` on; `data` has them where they are whole UTF-8."""

    node: str = ""
    rank: int = 0
    offset: int | None = None
    data: str = ""
    base64: str = ""

    @classmethod
    def of(cls, node: str, rank: int, offset: int, content: bytes) -> RankOutput:
        """Word what a rank has written."""
        try:
            return cls(node, rank, offset, content.decode())
        except UnicodeDecodeError:
            return cls(node, rank, offset, base64=base64.b64encode(content).decode())

    @property
    def content(self) -> bytes:
        """The bytes; none where they cannot be read."""
        if not self.base64:
            return self.data.encode("utf-8", "surrogatepass")
        try:
            return base64.b64decode(self.base64)
        except ValueError:
            return b""


@omit_empty()
class RunLine(NamedTuple):
    """A line of `join --json`, which has one of these. The last line is the result itself."""

    say: str = ""
    opening: RunOpened | None = None
    event: Mapping[str, Json] = {}
    output: RankOutput | None = None
    status: StatusDocument | None = None


class LinesView(View):
    """`join --json`: whoever reads it can rebuild the run directory (`run --k8s` does)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._status = StatusDocument()
        self._offsets: dict[int, int] = {}  # of each rank's log in this attempt

    def _write(self, record: RunLine | ResultDocument) -> None:
        self._stream.write(document_line(record) + "\n")

    def say(self, label: str, text: str) -> None:
        """Write a line for a person. `label` is left out: it says which command this is."""
        self._write(RunLine(text))
        self._stream.flush()

    def opening(self, opened: RunOpened) -> None:
        """Write the first document: run, nodes, command."""
        self._write(RunLine(opening=opened))

    def event(self, stamped: Stamped[Fact]) -> None:
        """Write an event of events.jsonl."""
        if isinstance(stamped.fact, AttemptStart):
            self._offsets.clear()
        self._write(RunLine(event=write_line(stamped)))

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Write bytes of a rank's log, in order, with their offset."""
        offset = self._offsets.get(rank, 0)
        self._offsets[rank] = offset + len(data)
        self._write(RunLine(output=RankOutput.of(node_name, rank, offset, data)))

    def status(self, status: StatusDocument, now: float) -> None:
        """Write the status.json document, where it says something new."""
        if replace(status, t=self._status.t) != self._status:
            self._status = status
            self._write(RunLine(status=status))

    def tick(self, now: float) -> None:
        """Pass on what was written."""
        self._stream.flush()

    def closing(self, result: ResultDocument) -> None:
        """Write the last line: the document that `run --json` prints."""
        self._write(result)
        self._stream.flush()


class Replay:
    """Events, output, states and the result go where they would be, had the run been started from here."""

    def __init__(self, run: RunDirectory, view: View, clock: Callable[[], float] = time.time) -> None:
        self.run = run
        self.view = view
        self.result: ResultDocument | None = None
        self.last_words: list[str] = []  # lines that are none of ours: an interpreter's complaint, a traceback
        self._clock = clock
        self._logs = LogWriter(run)
        self._nodes = {node.name: index for index, node in enumerate(run.read_run().nodes)}
        self._attempt = run.read_status().attempt

    def line(self, text: str) -> None:
        """Take one line of node 0's standard output; keep one that is not a document of allranks in `last_words`."""
        now = self._clock()
        try:
            document = read_object(text, DOCUMENT_LIMIT)
        except DecodeError:
            if text.strip():
                self.last_words = [*self.last_words, text.rstrip()[:300]][-20:]
            return
        line = decode_parts(RunLine, document)
        if line.event:
            self._event(line.event)
        elif line.output is not None:
            self._output(line.output, now)
        elif line.status is not None:
            self._status(line.status, now)
        elif line.opening is not None:
            self._opening(line.opening)
        elif line.say:
            self.view.event(Stamped("", now, None, JoinProgress(line.say)))
        elif "exit" in document and "run" in document:
            # As this run directory has it: its time began before node 0's did.
            result = replace(result_record(document), run=self.run.name, directory=str(self.run.path))
            self.result = replace(result, goodput=None, time_ledger=None)

    def close(self) -> None:
        """Close the logs."""
        self._logs.close()

    # -- kinds of lines ----------------------------------------------------------------------------

    def _event(self, event: Mapping[str, Json]) -> None:
        stamped = read_line(dict(event))
        fact = stamped.fact if stamped is not None else None
        if isinstance(fact, AttemptStart) and stamped is not None:
            self._attempt = stamped.attempt or 0
        if isinstance(fact, RunEnd):
            return  # the result says it, once it is complete
        self.run.append_line(dict(event))
        if stamped is not None:
            self.view.event(stamped)

    def _output(self, output: RankOutput, now: float) -> None:
        data = output.content
        stream = Stream(RANK_LOG, output.rank, self._attempt)
        index = self._nodes.setdefault(output.node, len(self._nodes))
        size = size_of(self.run.log_path(index, output.node, *stream))
        offset = size if output.offset is None or output.offset < 0 else output.offset
        self._logs.write(index, output.node, stream, offset, data)
        if offset + len(data) > size:  # else the follower before this one has shown it
            self.view.output(output.node, output.rank, data[max(0, size - offset) :], now)

    def _status(self, status: StatusDocument, now: float) -> None:
        if status.state in OVER:
            return  # only with the result
        record = replace(status, run=self.run.name)
        write_status(self.run, record)
        self.view.status(record, now)

    def _opening(self, opened: RunOpened) -> None:
        listed = enumerate(opened.nodes)
        nodes = [NodeEntry(node.name, index, node.host, slots=node.slots, node_rank=index) for index, node in listed]
        self._nodes = {node.name: index for index, node in enumerate(nodes)}
        write_nodes(self.run, nodes)
