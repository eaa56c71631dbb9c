"""A terminal's whole window: drawn again and again, asked for keys, and left as it was (IO).

The alternate screen keeps what was there. Where the window is left, by a key, Ctrl-C, SIGTERM or an error, the cursor,
the echo of keys and the former screen come back.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import TextIO

from allranks.errors import Interrupted
from allranks.exitcodes import TERMINATED

from .terminal import clean, shows_colour, window_size, write_unfiltered

_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
MOST_KEYS = 64  # bytes of one read


class FullScreen:
    """The window of a stream on a terminal, as a context; `draw` replaces all of it."""

    def __init__(self, stream: TextIO, keyboard: TextIO) -> None:
        self._stream = stream
        self._keyboard: int | None = keyboard.fileno() if keyboard.isatty() else None
        self._attributes: list[int | list[bytes | int]] | None = None
        self._previous: dict[int, object] = {}
        self._has_entered = False

    def __enter__(self) -> FullScreen:
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._previous[number] = signal.signal(number, self._end)
        self._previous[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._leave()
        for number, previous in self._previous.items():
            signal.signal(number, previous)  # type: ignore[arg-type]  # as signal.signal has returned it

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the window now."""
        return window_size(self._stream, 80, 24)

    def draw(self, lines: Sequence[str]) -> None:
        """Show lines from the top; what was there goes. There must not be more than the window has."""
        colour = shows_colour(self._stream)
        text = "\x1b[K\r\n".join(clean(line, colour) for line in lines)
        self._write(f"\x1b[H{text}\x1b[K\x1b[J")

    def key(self, seconds: float) -> str:
        """Wait for keys; return those that were pressed, or nothing after `seconds`. Other signals end the wait."""
        if self._keyboard is None:
            select.select([], [], [], seconds)
            return ""
        ready, _, _ = select.select([self._keyboard], [], [], seconds)
        if not ready:
            return ""
        pressed = os.read(self._keyboard, MOST_KEYS)
        if not pressed:  # the terminal has hung up
            raise Interrupted("the terminal is closed", TERMINATED)
        return pressed.decode("ascii", "replace")

    def _enter(self) -> None:
        if self._keyboard is not None:
            self._attributes = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard, termios.TCSADRAIN)
        self._write(_ENTER)
        self._has_entered = True

    def _leave(self) -> None:
        if not self._has_entered:
            return
        self._has_entered = False
        if self._keyboard is not None and self._attributes is not None:
            with contextlib.suppress(termios.error):  # the terminal has hung up
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._attributes)
        self._write(_LEAVE)

    def _end(self, number: int, frame: FrameType | None) -> None:
        raise Interrupted(signal.Signals(number).name, TERMINATED)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: leave the window, stop as any program does, and come back."""
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self._enter()

    def _write(self, text: str) -> None:
        write_unfiltered(self._stream, text)
        self._stream.flush()


def is_interactive() -> bool:
    """Tell whether a whole window can be drawn on standard output."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", None)
