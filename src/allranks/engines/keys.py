"""Ctrl-Z during a run: stop, detach or go on (a stopped launcher would let its lease run out)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import termios
import tty
from typing import Any

from allranks.gang.session import Session

QUESTION = "\nCtrl-Z: [s]top the run, [d]etach (it goes on without this terminal), or [c]ontinue? "


def offer(session: Session) -> None:
    """Ask for one key; without a terminal a stop signal is not heeded."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    fd = sys.stdin.fileno()
    before: list[Any] = termios.tcgetattr(fd)
    session.view.pause()
    sys.stderr.write(QUESTION)
    sys.stderr.flush()
    tty.setcbreak(fd, termios.TCSADRAIN)
    loop = asyncio.get_running_loop()

    def on_key() -> None:
        loop.remove_reader(fd)
        key = os.read(fd, 1).decode("ascii", "replace").lower()
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        sys.stderr.write(key + "\n")
        session.view.resume()
        if key == "s":
            session.controller.stop("ctrl-z", session.spec.limits.stop_grace)
        elif key == "d":
            hand_over(session)

    loop.add_reader(fd, on_key)


def hand_over(session: Session) -> None:
    """Start a daemon that takes the run over; this controller ends when it is replaced."""
    path = str(session.run_dir.path)
    log = session.run_dir.path / "controller.log"
    with log.open("ab") as out:
        subprocess.Popen(
            [sys.executable, "-m", "allranks", "attach", "--take-over", path],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
