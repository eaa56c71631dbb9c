"""Work that may block (names, interpreters, connections) runs in a forked child with a time limit.

So the agent stays single-threaded, forks ranks safely, and work that hangs loses only itself.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from functools import partial
from typing import Callable, Dict, Generic, NoReturn, Optional, Type, TypeVar

from allranks.protocol.codec import DecodeError, decode, encode
from allranks.protocol.frames import MAX_JSON
from allranks.protocol.jsontext import JsonObject, read_object, write_json
from allranks.protocol.messages import (
    CallTimesMessage,
    CountersMessage,
    Message,
    ProbedMessage,
    ReachedMessage,
    ReadyMessage,
)
from allranks.protocol.records import NamedTuple

from .files import write_all
from .link import log_traceback
from .processes import read_process, send_signal

LIMIT = MAX_JSON - (64 << 10)  # bytes of a result: a message to the controller has to hold it
MOST_TASKS = 64  # at a time: a run has a few, a coordinator that is not ours could ask for any number
Result = TypeVar("Result")
Answer = TypeVar("Answer", CallTimesMessage, CountersMessage, ProbedMessage, ReachedMessage, ReadyMessage)


class Work(NamedTuple, Generic[Result]):
    """What a child does: its result is a record of `kind`."""

    name: str
    function: Callable[[], Result]
    kind: Type[Result]
    seconds: float


class Child:
    """A forked process that does nothing but `write` to the pipe that it is given. Raises OSError where none can be
    made."""

    def __init__(self, write: Callable[[int], None]) -> None:
        self.pipe, write_end = os.pipe()
        os.set_blocking(self.pipe, False)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _run_in_child(write, write_end)
        except OSError:
            os.close(self.pipe)
            raise
        finally:
            os.close(write_end)

    def end(self) -> None:
        """Kill it where it lives, and close the pipe."""
        process = read_process(self.pid)
        if process is not None and process.parent == os.getpid():
            send_signal(process, signal.SIGKILL)
        os.close(self.pipe)


def _run_in_child(write: Callable[[int], None], write_end: int) -> NoReturn:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        write(write_end)
        status = 0
    finally:
        os._exit(status)


class Task(Child):
    """Work in a child. `done` gets the record and no error, or None and the error."""

    def __init__(self, work: Work[Result], done: Callable[[Optional[Result], str], None]) -> None:
        super().__init__(partial(_write_answer, work.function))
        self.deadline = time.monotonic() + work.seconds
        self._finish: Callable[[bytes], None] = partial(_finish, work, done)
        self._fail = partial(done, None, "%s did not finish within %g s" % (work.name, work.seconds))
        self._data = bytearray()

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
        self.end()
        self._fail()


class Tasks:
    """The tasks of an agent that run now: their pipes are read in its loop. `tell` takes answers for the controller."""

    def __init__(self, selector: selectors.BaseSelector, tell: Callable[[Message], None]) -> None:
        self._selector = selector
        self._tell = tell
        self._running: Dict[int, Task] = {}  # by the descriptor of the pipe
        self._ends = 0  # orders to end so far

    def run(self, work: Work[Result], done: Callable[[Optional[Result], str], None]) -> bool:
        """Start a task; False where that is not possible, which `done` is called with."""
        if len(self._running) >= MOST_TASKS:
            done(None, "this node is at %d requests already" % MOST_TASKS)
            return False
        try:
            task = Task(work, done)
        except OSError as error:
            done(None, "%s could not be started: %s" % (work.name, error.strerror))
            return False
        self._running[task.pipe] = task
        self._selector.register(task.pipe, selectors.EVENT_READ, partial(self._on_output, task))
        return True

    def answer(self, work: Work[Result], message: Callable[[Optional[Result], str], Message]) -> None:
        """Run a task and tell what `message` makes of its result, or of why there is none.

        After an order to end it is left out: the end has killed the task, and the controller would take that for an
        answer to what the next attempt asks.
        """
        ends = self._ends

        def done(result: Optional[Result], error: str) -> None:
            if self._ends == ends:
                self._tell(message(result, error))

        self.run(work, done)

    def answer_with(self, work: Work[Answer]) -> None:
        """Run a task whose result is the answer, and tell it, or why there is none."""

        def message(result: Optional[Answer], error: str) -> Message:
            return work.kind(error=error) if result is None else result

        self.answer(work, message)

    def forget_answers(self) -> None:
        """Tell no answer to what was asked until now: the ranks are to end."""
        self._ends += 1

    def next_deadline(self) -> float:
        """When the next task has taken too long (CLOCK_MONOTONIC seconds)."""
        return min((task.deadline for task in self._running.values()), default=float("inf"))

    def look(self, now: float) -> None:
        """End the tasks that have taken too long."""
        for task in list(self._running.values()):
            if now >= task.deadline:
                self._forget(task)
                task.expire()

    def _on_output(self, task: Task) -> None:
        if task.is_complete():
            self._forget(task)
            task.finish()

    def _forget(self, task: Task) -> None:
        del self._running[task.pipe]
        self._selector.unregister(task.pipe)


def _finish(work: Work[Result], done: Callable[[Optional[Result], str], None], data: bytes) -> None:
    try:
        value = read_object(data, LIMIT)
    except DecodeError:
        done(None, "%s ended without a result" % work.name)
        return
    if "error" in value:
        done(None, str(value["error"]))
        return
    try:
        result = decode(work.kind, value["result"])
    except DecodeError as error:
        done(None, "%s gave another result: %s" % (work.name, error))
        return
    done(result, "")


def _write_answer(function: Callable[[], object], write_end: int) -> None:
    """Run the function, and write its answer to the pipe. Output of the child goes to the node's log."""
    answer: JsonObject = {}
    try:
        answer["result"] = encode(function())
    except DecodeError as error:  # what was asked has no answer, and says why
        answer["error"] = str(error)
    except Exception as error:
        log_traceback()
        answer["error"] = "%s: %s" % (type(error).__name__, error)
    data = write_json(answer)
    if len(data) > LIMIT:
        data = write_json({"error": "its answer has %d bytes, and a message holds %d" % (len(data), LIMIT)})
    write_all(write_end, data)
