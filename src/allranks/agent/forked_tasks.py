"""Work that may block (names, interpreters, connections) runs in a forked child with a time limit.

So the agent stays single-threaded, forks ranks safely, and work that hangs loses only itself.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Callable, Dict, List, NoReturn, Optional, Type, TypeVar

from allranks.protocol.codec import DecodeError, decode, encode
from allranks.protocol.frames import MAX_JSON
from allranks.protocol.jsontext import JsonObject, read_object, write_json
from allranks.protocol.records import NamedTuple

from .files import write_all
from .link import log_traceback
from .processes import read_process, send_signal

LIMIT = MAX_JSON - (64 << 10)  # bytes of a result: a message to the controller has to hold it
Result = TypeVar("Result")


class Nothing(NamedTuple):
    """The result of a task that is done for what it does."""


class Samples(NamedTuple):
    """The samples of a node as JSON objects by rank, NCCL's word on the whole job, and which ranks were signalled."""

    ranks: Dict[int, JsonObject]
    ras: Optional[str]
    signalled: List[int]


class Task:
    """A function that runs in a child; its result, a record of `kind`, comes back through a pipe.

    `done` gets the record and no error, or None and the error. Raises OSError where no child can be made."""

    def __init__(
        self,
        name: str,
        function: Callable[[], Result],
        kind: Type[Result],
        seconds: float,
        done: Callable[[Optional[Result], str], None],
    ) -> None:
        self._finish: Callable[[bytes], None] = partial(_finish, name, kind, done)
        self._fail: Callable[[str], None] = partial(done, None)
        self._late = "%s did not finish within %g s" % (name, seconds)
        self._data = bytearray()
        self.deadline = time.monotonic() + seconds
        self.pipe, write_end = os.pipe()
        os.set_blocking(self.pipe, False)
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self.pipe)
            raise
        else:
            if self.pid == 0:
                _run_in_child(function, write_end)
        finally:
            os.close(write_end)

    def is_complete(self) -> bool:
        """Read what has come; tell whether that is all."""
        while True:
            try:
                data = os.read(self.pipe, 65536)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._data += data

    def finish(self) -> None:
        """Close the pipe and hand over the result."""
        os.close(self.pipe)
        self._finish(bytes(self._data))

    def expire(self) -> None:
        """End the child, which took too long."""
        process = read_process(self.pid)
        if process is not None and process.parent == os.getpid():
            send_signal(process, signal.SIGKILL)
        os.close(self.pipe)
        self._fail(self._late)


def _finish(name: str, kind: Type[Result], done: Callable[[Optional[Result], str], None], data: bytes) -> None:
    """Hand over the result that a child has written."""
    try:
        value = read_object(data, LIMIT)
    except DecodeError:
        done(None, "%s ended without a result" % name)
        return
    if "error" in value:
        done(None, str(value["error"]))
        return
    try:
        result = decode(kind, value["result"])
    except (KeyError, DecodeError) as error:
        done(None, "%s gave another result: %s" % (name, error))
        return
    done(result, "")


def _run_in_child(function: Callable[[], object], write_end: int) -> NoReturn:
    """Run the function, write its answer to the pipe and exit. Output of the child goes to the node's log."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        answer: JsonObject = {}
        try:
            answer["result"] = encode(function())
        except Exception as error:
            log_traceback()
            answer["error"] = "%s: %s" % (type(error).__name__, error)
        data = write_json(answer)
        if len(data) > LIMIT:
            data = write_json({"error": "its answer has %d bytes, and a message holds %d" % (len(data), LIMIT)})
        write_all(write_end, data)
        status = 0
    finally:
        os._exit(status)
