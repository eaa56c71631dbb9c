"""Ctrl-Z's question, and the question of Ctrl-C, in a terminal of their own."""

import asyncio
import os
import pty
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.engines import following
from allranks.engines.controlled import KeyQuestion
from allranks.engines.signals import Signals
from allranks.runs.view import View


class Terminal:
    """A terminal whose keys `type` presses; after `begin` it is standard input and error of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._end, self._tty = pty.openpty()
        self.streams = [os.fdopen(os.dup(self._tty), "r"), os.fdopen(os.dup(self._tty), "w")]
        self._monkeypatch = monkeypatch

    def begin(self) -> None:
        """In the test itself: pytest sets the streams again before it."""
        self._monkeypatch.setattr(sys, "stdin", self.streams[0])
        self._monkeypatch.setattr(sys, "stderr", self.streams[1])

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    @property
    def gives_lines_and_echoes(self) -> bool:
        flags = termios.tcgetattr(self._tty)[3]
        return bool(flags & termios.ICANON and flags & termios.ECHO)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        os.close(self._tty)
        os.close(self._end)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal(monkeypatch)
    yield made
    made.close()


def session_that_notes(stops: list[str]) -> Any:
    limits = SimpleNamespace(stop_grace=30.0)
    return SimpleNamespace(
        view=View(), stop_all=lambda reason, grace: stops.append(reason), others=[], spec=SimpleNamespace(limits=limits)
    )


def test_ctrl_z_twice_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    """The second question took the first one's settings for the user's: the shell had no echo after the run."""
    stops: list[str] = []

    async def two_questions() -> None:
        terminal.begin()
        question = KeyQuestion()
        session = session_that_notes(stops)
        question.ask(session)
        question.ask(session)
        assert not terminal.gives_lines_and_echoes
        terminal.type("s")
        while not stops:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(two_questions(), 60.0))
    assert terminal.gives_lines_and_echoes


def test_a_run_that_ends_while_it_is_asked_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    async def one_question() -> None:
        terminal.begin()
        question = KeyQuestion()
        question.ask(session_that_notes([]))
        question.close()

    asyncio.run(one_question())
    assert terminal.gives_lines_and_echoes


class AsksOnCtrlC:
    """What `read_request` needs of a run whose Ctrl-C is a question."""

    on_ctrl_c = following.OnCtrlC.ASK
    view = View()


@pytest.fixture
def signals() -> Iterator[Signals]:
    """With the question of Ctrl-C open."""
    made = Signals()
    os.kill(os.getpid(), signal.SIGINT)
    yield made
    made.restore()


@pytest.mark.parametrize(
    ("number", "request_"), [(signal.SIGHUP, "leave"), (signal.SIGTERM, "stop"), (signal.SIGINT, "ctrl-c")]
)
def test_a_signal_answers_the_question_of_ctrl_c(
    terminal: Terminal, signals: Signals, number: int, request_: str
) -> None:
    """A terminal that was lost while the question was open cancelled the job, and a second Ctrl-C did nothing."""
    terminal.begin()
    later = threading.Timer(0.3, os.kill, (os.getpid(), number))
    later.start()
    assert following.read_request(signals, AsksOnCtrlC()) == request_
    later.join()


@pytest.mark.parametrize(("typed", "request_"), [("c\n", "ctrl-c"), ("d\n", "leave"), ("x\n", None)])
def test_a_word_answers_the_question_of_ctrl_c(
    terminal: Terminal, signals: Signals, typed: str, request_: str | None
) -> None:
    terminal.begin()
    terminal.type(typed)
    assert following.read_request(signals, AsksOnCtrlC()) == request_
