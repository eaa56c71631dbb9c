"""Ask ranks which collective they are at: questions to the helper threads of their runners, all at once.

A rank's answer holds what `allranks.diagnose.hangs.recorder` reads. A rank that gives none is a finding too, so
why is said. Whole dumps are long: they go to a file that travels, and their newest entries into the answer.
"""

import os
import select
import socket
import time
from typing import Dict, List, Optional

from allranks.protocol.jsontext import DecodeError, JsonObject, read_object, write_json
from allranks.protocol.messages import CountersMessage

from .processes import Process, read_process

SECONDS = 6.0  # a helper needs 1 ms, and the interpreter's lock on a machine that may be busy
LIMIT = 32 << 20  # bytes of one answer
KEPT = 40  # entries of each group that go into a message; the file has all


def ask_path(node_dir: str, rank: int) -> str:
    """Where a rank's helper listens (plan/environment.py has the same name)."""
    return os.path.join(node_dir, "ask_%03d" % rank)


def flight_file(node_dir: str, rank: int) -> str:
    """Where a rank's dumps are kept, one a line (plan/environment.py has the same name)."""
    return os.path.join(node_dir, "flight_rank_%03d.jsonl" % rank)


class Asking:
    """One question to all ranks at once: counters, look or dump (agent/runner_recorder.py says what they give)."""

    def __init__(self, ranks: Dict[int, Process], node_dir: str, word: str) -> None:
        self._ranks = ranks
        self._dir = node_dir
        self._word = word
        self._deadline = time.monotonic() + SECONDS
        self._answers: Dict[int, JsonObject] = {}
        self._open: Dict[int, socket.socket] = {}
        self._data: Dict[int, bytearray] = {}
        for rank in ranks:
            self._begin(rank)

    def _begin(self, rank: int) -> None:
        process = read_process(self._ranks[rank].pid)
        if process is None or process.state in "TtZX":
            self._answers[rank] = {"error": "its flight recorder could not answer: %s" % _state(process)}
            return
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.setblocking(False)
        try:
            channel.connect(ask_path(self._dir, rank))
            channel.send(self._word.encode())
        except OSError as error:
            channel.close()
            absent = isinstance(error, (FileNotFoundError, ConnectionRefusedError))
            why = "it has no process group" if absent else str(error)
            self._answers[rank] = {"error": "its flight recorder could not be asked: %s" % why}
            return
        self._open[rank], self._data[rank] = channel, bytearray()

    def answers(self) -> Dict[int, JsonObject]:
        """By rank, when all have answered or the time is over."""
        while self._open and time.monotonic() < self._deadline:
            channels = {channel: rank for rank, channel in self._open.items()}
            for channel in select.select(list(channels), [], [], self._deadline - time.monotonic())[0]:
                self._read(channels[channel])
        for rank, channel in self._open.items():
            channel.close()
            why = "no answer within %g s (%s)" % (SECONDS, _state(read_process(self._ranks[rank].pid)))
            self._answers[rank] = {"error": "its flight recorder could not answer: %s" % why, "silent": True}
        return self._answers

    def _read(self, rank: int) -> None:
        try:
            part = self._open[rank].recv(1 << 18)
        except OSError:
            part = b""
        self._data[rank] += part
        if part and len(self._data[rank]) < LIMIT:
            return
        self._open.pop(rank).close()
        try:
            answer = read_object(bytes(self._data.pop(rank)), LIMIT + (1 << 18))
        except DecodeError:
            answer = {"error": "its flight recorder gave no document"}
        self._answers[rank] = answer
        if self._word == "dump":
            _keep(flight_file(self._dir, rank), {k: v for k, v in answer.items() if k != "stacks"})
            for recorder in (answer.get("recorders") or {}).values():
                recorder["entries"] = newest(recorder.get("entries") or [])


def _state(process: Optional[Process]) -> str:
    return "the process is in state %s" % process.state if process is not None else "the process is gone"


def _keep(path: str, answer: JsonObject) -> None:
    """Add a line; a full disk has none."""
    try:
        with open(path, "ab") as file:
            file.write(write_json(answer) + b"\n")
    except OSError:
        pass


def newest(entries: List[JsonObject]) -> List[JsonObject]:
    """The newest of each group, and before them the oldest one that is not done: there it stands."""
    groups: Dict[str, List[JsonObject]] = {}
    for entry in entries:
        groups.setdefault(str(entry.get("process_group")), []).append(entry)
    kept: List[JsonObject] = []
    for group in groups.values():
        old = [e for e in group[:-KEPT] if not e.get("retired") and e.get("state") != "completed"]
        kept += old[:1] + group[-KEPT:]
    return kept


def counters(ranks: Dict[int, Process], node_dir: str) -> CountersMessage:
    """Say how far each rank's groups are; what moves between two of these is alive."""
    answers = Asking(ranks, node_dir, "counters").answers()
    return CountersMessage({rank: counted(answer) for rank, answer in answers.items()})


def counted(answer: JsonObject) -> JsonObject:
    """The numbers of an answer that grow with every collective; empty where there are none."""
    numbers: JsonObject = {}
    for group in answer.get("groups") or []:
        numbers[str(group.get("name"))] = group.get("sequence")
    for backend, recorder in (answer.get("recorders") or {}).items():
        for group, status in (recorder.get("pg_status") or {}).items():
            numbers["%s/%s" % (backend, group)] = status
    return numbers
