"""Ctrl-Z during a run: stop, detach or go on (a stopped launcher would let its lease run out)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import termios
import tty
from typing import Any

from allranks.agent.files import open_left
from allranks.gang.session import Session
from allranks.unpacked import own_command

QUESTION = "\nCtrl-Z: [s]top the run, [d]etach (it goes on without this terminal), or [c]ontinue? "


class KeyQuestion:
    """The question of one run. While it is open the terminal gives single keys, without echo; `close` ends that."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None  # the terminal's settings, while the question is open

    def ask(self, session: Session) -> None:
        """Ask for one key, again where the question is open; without a terminal a stop signal is not heeded."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return
        fd = sys.stdin.fileno()
        if self._before is None:
            self._before = termios.tcgetattr(fd)
        session.view.pause()
        sys.stderr.write(QUESTION)
        sys.stderr.flush()
        tty.setcbreak(fd, termios.TCSADRAIN)
        asyncio.get_running_loop().add_reader(fd, self._take, session)

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._before is not None:
            with contextlib.suppress(OSError, ValueError, termios.error):  # the terminal has been closed
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)
            self._before = None

    def _take(self, session: Session) -> None:
        fd = sys.stdin.fileno()
        asyncio.get_running_loop().remove_reader(fd)
        key = ""
        with contextlib.suppress(OSError):  # the terminal has been closed
            key = os.read(fd, 1).decode("ascii", "replace").lower()
        self.close()
        sys.stderr.write(key + "\n")
        session.view.resume()
        if key == "s":
            session.controller.stop("ctrl-z", session.spec.limits.stop_grace)
        elif key == "d":
            hand_over(session)


def hand_over(session: Session) -> None:
    """Start a daemon that takes the run over; this controller ends when it is replaced."""
    session.handed_over = True
    path = str(session.run_dir.path)
    log = open_left(str(session.run_dir.path / "controller.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open(log, "ab") as out:
        subprocess.Popen(
            [*own_command(), "attach", "--take-over", path],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
