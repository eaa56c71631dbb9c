"""A run directory made from JSON lines: what `join --json` writes on node 0, somewhere else (writes files)."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import replace

from allranks.protocol.codec import decode_parts
from allranks.protocol.frames import RANK_LOG, Stream
from allranks.protocol.jsontext import DecodeError, read_object
from allranks.protocol.run_facts import JoinProgress, Stamped, read_line

from .directory import DOCUMENT_LIMIT, RunDirectory
from .documents import OVER, Document, NamedNode, ResultDocument, RunOpened, StatusDocument, result_record
from .logs import LogWriter
from .opening import write_nodes, write_status
from .regular import size_of
from .view import View


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
        document = _read(text)
        now = self._clock()
        if document is None:
            if text.strip():
                self.last_words = [*self.last_words, text.rstrip()[:300]][-20:]
        elif isinstance(document.get("event"), dict):
            self._event(document["event"])
        elif isinstance(document.get("output"), dict):
            self._output(document["output"], now)
        elif isinstance(document.get("status"), dict):
            self._status(document["status"], now)
        elif isinstance(document.get("opening"), dict):
            self._opening(document["opening"])
        elif isinstance(document.get("say"), str):
            self.view.event(Stamped("", now, None, JoinProgress(document["say"])))
        elif isinstance(document.get("exit"), int) and "run" in document:
            self.result = self._as_ours(result_record(document))

    def _as_ours(self, result: ResultDocument) -> ResultDocument:
        """Give node 0's result as this run directory has it: its time began before node 0's did."""
        return replace(result, run=self.run.name, directory=str(self.run.path), goodput=None, time_ledger=None)

    def close(self) -> None:
        """Close the logs."""
        self._logs.close()

    # -- kinds of lines ----------------------------------------------------------------------------

    def _event(self, event: Document) -> None:
        if event.get("event") == "attempt-start" and isinstance(event.get("attempt"), int):
            self._attempt = event["attempt"]
        if event.get("event") == "run-end":
            return  # the result says it, once it is complete
        self.run.append_line(event)
        stamped = read_line(event)
        if stamped is not None:
            self.view.event(stamped)

    def _output(self, output: Document, now: float) -> None:
        node = str(output.get("node"))
        rank = output.get("rank")
        if not isinstance(rank, int):
            return
        data = _bytes(output)
        stream = Stream(RANK_LOG, rank, self._attempt)
        index = self._nodes.setdefault(node, len(self._nodes))
        size = size_of(self.run.log_path(index, node, *stream))
        offset = output.get("offset")
        if not isinstance(offset, int) or offset < 0:
            offset = size
        self._logs.write(index, node, stream, offset, data)
        if offset + len(data) > size:  # else the follower before this one has shown it
            self.view.output(node, rank, data[max(0, size - offset) :], now)

    def _status(self, status: Document, now: float) -> None:
        if status.get("state") in OVER:
            return  # only with the result
        record = replace(decode_parts(StatusDocument, status), run=self.run.name)
        write_status(self.run, record)
        self.view.status(record, now)

    def _opening(self, info: Document) -> None:
        listed = enumerate(decode_parts(RunOpened, info).nodes)
        nodes = [NamedNode(node.name, index, node.host, slots=node.slots, node_rank=index) for index, node in listed]
        self._nodes = {node.name: index for index, node in enumerate(nodes)}
        write_nodes(self.run, nodes)


def _read(text: str) -> Document | None:
    try:
        return read_object(text, DOCUMENT_LIMIT)
    except DecodeError:
        return None


def _bytes(output: Document) -> bytes:
    if isinstance(output.get("base64"), str):
        try:
            return base64.b64decode(output["base64"])
        except ValueError:
            return b""
    return str(output.get("data") or "").encode("utf-8", "surrogatepass")
