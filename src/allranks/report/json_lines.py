"""A run as JSON lines on standard output: events, output and states as they come, the result last."""

from __future__ import annotations

import base64
import json
import sys
from typing import TextIO

from allranks.protocol.codec import SCHEMA, encode
from allranks.protocol.run_facts import AttemptStart, Fact, Stamped, write_line
from allranks.runs.documents import Document, ResultDocument, RunOpened, StatusDocument
from allranks.runs.view import View


class LinesView(View):
    """`join --json`: whoever reads it can rebuild the run directory (`run --k8s` does)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._status = ""
        self._offsets: dict[int, int] = {}  # of each rank's log in this attempt

    def _write(self, document: Document) -> None:
        self._stream.write(json.dumps({"schema": SCHEMA, **document}, separators=(",", ":")) + "\n")

    def say(self, label: str, text: str) -> None:
        """Write a line for a person. `label` is left out: it says which command this is."""
        self._write({"say": text})
        self._stream.flush()

    def opening(self, opened: RunOpened) -> None:
        """Write the first document: run, nodes, command."""
        self._write({"opening": encode(opened)})

    def event(self, stamped: Stamped[Fact]) -> None:
        """Write an event of events.jsonl."""
        if isinstance(stamped.fact, AttemptStart):
            self._offsets.clear()
        self._write({"event": write_line(stamped)})

    def output(self, node_name: str, rank: int, data: bytes, now: float) -> None:
        """Bytes of a rank's log, in order, with their offset; as text where they are whole UTF-8."""
        offset = self._offsets.get(rank, 0)
        self._offsets[rank] = offset + len(data)
        try:
            content = {"data": data.decode()}
        except UnicodeDecodeError:
            content = {"base64": base64.b64encode(data).decode()}
        self._write({"output": {"node": node_name, "rank": rank, "offset": offset, **content}})

    def status(self, status: StatusDocument, now: float) -> None:
        """Write the status.json document, where it says something new."""
        document = encode(status)
        text = json.dumps({k: v for k, v in document.items() if k != "t"})
        if text != self._status:
            self._status = text
            self._write({"status": document})

    def tick(self, now: float) -> None:
        """Pass on what was written."""
        self._stream.flush()

    def closing(self, result: ResultDocument) -> None:
        """Write the last line: the document that `run --json` prints."""
        self._write(encode(result))
        self._stream.flush()
