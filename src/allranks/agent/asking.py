"""Ask ranks which collective they are at: questions to the helper threads of their runners, all at once.

A rank's answer holds what `allranks.diagnose.hangs.recorder` reads. A rank that gives none is a finding too, so
why is said. Whole dumps are long: they go to a file that travels, and their newest entries into the answer.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from allranks.protocol.codec import decode, decode_parts
from allranks.protocol.jsontext import DecodeError, JsonObject, read_object, write_json
from allranks.protocol.messages import CountersMessage, ProfiledMessage
from allranks.protocol.node_names import NodeFiles
from allranks.protocol.orders import ProfileOrder
from allranks.protocol.processes import ImportRecord
from allranks.protocol.records import NamedTuple
from allranks.protocol.samples import RankCalls, RankProfile

from .files import append, create_file, open_left, remove_file
from .processes import Process, read_process
from .template import digest, stamp_of

SECONDS = 6.0  # a helper needs 1 ms, and the interpreter's lock on a machine that may be busy
LIMIT = 32 << 20  # bytes of one answer
KEPT = 40  # entries of each group that go into a message; the file has all


class CountedGroup(NamedTuple):
    """A process group, and the number of its newest collective."""

    name: str
    sequence: Optional[int] = None


class RecordedEntry(NamedTuple):
    """A collective in a flight recorder (torch's FlightRecorder.hpp), as far as it is chosen by."""

    process_group: Tuple[str, ...] = ()
    retired: Optional[bool] = None
    state: Optional[str] = None

    @property
    def is_done(self) -> bool:
        """Tell whether it has ended, one way or the other."""
        return bool(self.retired) or self.state == "completed"


class FlightRecorder(NamedTuple):
    """One backend's recorder: its newest collectives, and numbers by group."""

    entries: Tuple[JsonObject, ...] = ()
    pg_status: Mapping[str, object] = {}


class HelperAnswer(NamedTuple):
    """What is read here of the answer of a rank's helper; all of it travels. `silent`: it gave none in time."""

    stacks: str = ""
    silent: bool = False
    groups: Tuple[CountedGroup, ...] = ()
    recorders: Mapping[str, FlightRecorder] = {}


class Asking:
    """One question to all ranks at once; agent/runner_recorder.py has the words, and what they give.

    `whose` is who answers for a rank, in words. Without its answer within `seconds` a sentence with them says why."""

    def __init__(
        self,
        ranks: Dict[int, Process],
        node_dir: str,
        word: str,
        whose: str = "its flight recorder",
        seconds: float = SECONDS,
    ) -> None:
        self._ranks = ranks
        self._files = NodeFiles(node_dir)
        self._word = word
        self._whose = whose
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._answers: Dict[int, JsonObject] = {}
        self._open: Dict[int, socket.socket] = {}
        self._data: Dict[int, bytearray] = {}
        for rank in ranks:
            self._begin(rank)

    def _begin(self, rank: int) -> None:
        process = read_process(self._ranks[rank].pid)
        if process is None or process.is_stopped or process.has_ended:
            self._answers[rank] = {"error": "%s could not answer: %s" % (self._whose, _state(process))}
            return
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.setblocking(False)
        try:
            channel.connect(self._files.asked(rank))
            channel.send(self._word.encode())
        except OSError as error:
            channel.close()
            why = str(error)
            if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
                why = "it has no process group"
            self._answers[rank] = {"error": "%s could not be asked: %s" % (self._whose, why)}
            return
        self._open[rank] = channel
        self._data[rank] = bytearray()

    def take(self, until: float) -> bool:
        """Take answers until that time (CLOCK_MONOTONIC seconds); tell whether all have answered."""
        with selectors.PollSelector() as selector:  # any number of descriptors, and any number as one
            for rank, channel in self._open.items():
                selector.register(channel, selectors.EVENT_READ, rank)
            while self._open:
                for key, _ in selector.select(max(0.0, until - time.monotonic())):
                    if self._read(key.data):
                        selector.unregister(key.fd)
                if time.monotonic() >= until:
                    break
        return not self._open

    def forget(self) -> None:
        """Wait for no more answers."""
        for channel in self._open.values():
            channel.close()
        self._open.clear()

    def answers(self) -> Dict[int, JsonObject]:
        """By rank, when all have answered or the time is over."""
        self.take(self._deadline)
        for rank, channel in self._open.items():
            channel.close()
            why = "no answer within %g s (%s)" % (self._seconds, _state(read_process(self._ranks[rank].pid)))
            self._answers[rank] = {"error": "%s could not answer: %s" % (self._whose, why), "silent": True}
        return self._answers

    def _read(self, rank: int) -> bool:
        try:
            part = self._open[rank].recv(1 << 18)
        except OSError:
            part = b""
        self._data[rank] += part
        if part and len(self._data[rank]) < LIMIT:
            return False
        self._open.pop(rank).close()
        try:
            answer = read_object(bytes(self._data.pop(rank)), LIMIT + (1 << 18))
        except DecodeError:
            answer = {"error": "%s gave no document" % self._whose}
        self._answers[rank] = answer
        if self._word == "dump":
            kept = {key: value for key, value in answer.items() if key != "stacks"}
            append(self._files.flight(rank), write_json(kept) + b"\n")
            keep_newest(answer, KEPT)
        return True


def _state(process: Optional[Process]) -> str:
    if process is None:
        return "the process has ended"
    return "the process is in state %s" % process.state


def keep_newest(answer: JsonObject, most: int) -> None:
    """Leave of an answer's flight recorders the newest entries."""
    for name, recorder in decode_parts(HelperAnswer, answer).recorders.items():
        answer["recorders"][name]["entries"] = newest(recorder.entries, most)


def newest(entries: Sequence[JsonObject], most: int) -> List[JsonObject]:
    """Choose the newest entries of each group, and before them the oldest that is not done: there it stands."""
    groups: Dict[Tuple[str, ...], List[JsonObject]] = {}
    for entry in entries:
        groups.setdefault(decode_parts(RecordedEntry, entry).process_group, []).append(entry)
    kept: List[JsonObject] = []
    for group in groups.values():
        kept += [entry for entry in group[:-most] if not decode_parts(RecordedEntry, entry).is_done][:1]
        kept += group[-most:]
    return kept


def counters(ranks: Dict[int, Process], node_dir: str) -> CountersMessage:
    """Say how far each rank's groups are; what moves between two of these is alive."""
    answers = Asking(ranks, node_dir, "counters").answers()
    return CountersMessage({rank: counted(answer) for rank, answer in answers.items()})


def counted(answer: JsonObject) -> JsonObject:
    """Return the numbers of an answer that grow with every collective; empty where there are none."""
    counts = decode_parts(HelperAnswer, answer)
    numbers: JsonObject = {group.name: group.sequence for group in counts.groups}
    for backend, recorder in counts.recorders.items():
        for name, status in recorder.pg_status.items():
            numbers["%s/%s" % (backend, name)] = status
    return numbers


def call_times(ranks: Dict[int, Process], node_dir: str, most: int) -> Dict[int, RankCalls]:
    """Ask each rank when it called its newest collectives; what a rank's answer lacks, or has wrong, is left out."""
    answers = Asking(ranks, node_dir, "times %d" % most).answers()
    return {rank: decode_parts(RankCalls, answer) for rank, answer in answers.items()}


def ask_imports(ranks: Dict[int, Process], node_dir: str, began: float) -> ImportRecord:
    """Ask all ranks; keep the modules that all have, in the order of the first.

    Raise DecodeError where a rank gives no answer, or a file of the user's has changed since the ranks `began` (unix
    seconds): what they have imported is not what it is now."""
    imports = []
    for _, answer in sorted(Asking(ranks, node_dir, "imports").answers().items()):
        if "error" in answer:
            raise DecodeError(str(answer["error"]))
        imports.append(decode(ImportRecord, answer))
    common = dict(imports[0].modules)
    changed: Dict[str, Optional[str]] = {}
    own: Dict[str, str] = {}
    for one in imports:
        common = {name: file for name, file in common.items() if one.modules.get(name) == file}
        for name, value in one.changed.items():
            changed[name] = None if value is None else digest(value)
        for file in one.own:
            own[file] = _stamped(file, began)
    return ImportRecord(common, changed, own)


def _stamped(file: str, began: float) -> str:
    """Return the stamp of a file that has not changed since; raise DecodeError."""
    try:
        if os.stat(file).st_mtime <= began:
            return stamp_of(file)
    except OSError:
        pass
    raise DecodeError("%s has changed since the ranks began" % file)


# -- Profiles: begun and ended in the ranks by their runners (runner_profile.py), and made ready to travel -------------

BEGIN_SECONDS = 25.0  # runner_profile.py gives itself 20
WRITING_SECONDS = 90.0  # for a trace to be made: 10 µs an event, in all threads of a rank
MOST_TRACE = 1 << 30  # bytes of a trace before it is packed; a thousand operators have 250 KB


def profile(ranks: Dict[int, Process], node_dir: str, order: ProfileOrder) -> ProfiledMessage:
    """Begin to profile ranks, or end it and pack their traces. Whoever has no trace has an error."""
    if not order.is_end:
        answers = Asking(ranks, node_dir, "profile %g" % order.seconds, "its runner", BEGIN_SECONDS).answers()
    else:
        answers = Asking(ranks, node_dir, "profiled", "its runner", WRITING_SECONDS).answers()
    profiles = {rank: decode_parts(RankProfile, answer) for rank, answer in answers.items()}
    if order.is_end:
        profiles = {rank: _packed(rank, one, NodeFiles(node_dir), order.number) for rank, one in profiles.items()}
    return ProfiledMessage(profiles, asked=order.asked)


def _packed(rank: int, one: RankProfile, files: NodeFiles, number: int) -> RankProfile:
    """Pack a rank's trace into the file that travels. A rank that has ended may have left one."""
    import gzip  # late, with shutil: few ranks are profiled
    import shutil

    plain = files.plain_trace(rank)
    packed = files.trace(rank, number)
    try:
        size = os.stat(plain).st_size
        if size > MOST_TRACE:
            return one._replace(error="its trace has %d MB, and %d travel" % (size >> 20, MOST_TRACE >> 20))
        remove_file(packed)
        made = create_file(packed)
        with open(open_left(plain), "rb") as source, open(made, "wb") as file, gzip.open(file, "wb", 1) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        return one._replace(error="", size=os.stat(packed).st_size)
    except FileNotFoundError:
        return one._replace(error=one.error or "it has written no trace")
    except OSError as error:
        return one._replace(error="its trace could not be packed: %s" % error)
    finally:
        remove_file(plain)
