"""The terminal or pipe that people read: lines scroll, a table stays below them.

The terminal may not be read: Ctrl-S, a pager, an ssh connection that is stuck. So a thread writes, and `show`
waits for it a moment only. While it is stuck the newest table replaces the older ones and lines beyond a
limit are counted. Files and streams without a descriptor are written directly.
"""

from __future__ import annotations

import atexit
import os
import select
import stat
import threading
from typing import TextIO

from .fold import not_shown
from .terminal import clean, shown_length, shows_colour, window_size, write_unfiltered

WAIT = 0.2  # seconds `show` waits for its lines to be written: in order with what others print, as a rule
AT_EXIT = 2.0
WAITING_LINES = 4000
WAITING_CHARACTERS = 4 << 20


class Screen:
    """`show` waits WAIT seconds at most. `finish` waits until all is written or the reader has left."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._fd = _blocking_descriptor(stream)
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn: list[str] = []
        self.waiting_lines: list[str] = []
        self._table: list[str] = []
        self._size = self._unshown = 0
        self._busy = self._gone = False
        self.logs_complete = True  # until output has found no room
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def gone(self) -> bool:
        """Reading is over: everything is dropped from now on."""
        return self._gone

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return window_size(self.stream, 100, 40)

    def show(self, lines: list[str], table: list[str]) -> None:
        """Lines above, the table again below them."""
        if self._gone:
            return
        lines = self._cleaned(lines)
        table = self._cleaned(table)
        if self._thread is None and self._fd is not None:
            self._start_thread()
        if self._fd is None:
            self._write_directly(self._compose(lines, table))
            return
        with self._change:
            stuck = self._busy
            self._wait_in_line(lines)
            self._table = table
            self._busy = True
            self._change.notify_all()
            if not stuck:
                self._change.wait_for(self._is_idle, WAIT)

    def _wait_in_line(self, lines: list[str]) -> None:
        for line in lines:
            if len(self.waiting_lines) < WAITING_LINES and self._size < WAITING_CHARACTERS:
                self.waiting_lines.append(line)
                self._size += len(line)
            else:
                self._unshown += 1

    def finish(self, lines: list[str]) -> None:
        """Write the last lines, all of them, however long the reader takes."""
        self.show([], [])
        lines = self._cleaned(lines)
        if self._fd is not None:
            with self._change:
                self.waiting_lines = [*self._take(), *lines]
                self._busy = True
                self._change.notify_all()
                while not self._is_idle():
                    self._change.wait(0.2)  # in pieces, so that Ctrl-C is heard
        elif not self._gone:
            self._write_directly(self._compose(lines, []))

    def _cleaned(self, lines: list[str]) -> list[str]:
        """Lines of ranks, and our own with words of others: exceptions, host names, commands."""
        colour = shows_colour(self.stream)
        return [clean(part, colour) for line in lines for part in line.split("\n")]

    def forget_table(self) -> None:
        """Something else has written below the table: it is not drawn over."""
        with self._change:
            self._drawn = []

    # -- writing -----------------------------------------------------------------------------------

    def _compose(self, lines: list[str], table: list[str]) -> str:
        # the return comes first: an echoed ^C may have moved the cursor
        text = f"\r\x1b[{self._rows()}A\x1b[J" if self._drawn else ""
        self._drawn = table
        return text + "".join(line + "\n" for line in (*lines, *table))

    def _rows(self) -> int:
        """Rows the table takes now: the window may have become narrower."""
        columns = self.size()[0]
        return sum(max(1, -(-shown_length(line) // columns)) for line in self._drawn)

    def _write_directly(self, text: str) -> None:
        try:
            write_unfiltered(self.stream, text)  # lines are cleaned here: the table is drawn over itself
            self.stream.flush()
        except (OSError, ValueError):
            self._gone = True

    def _is_idle(self) -> bool:
        return self._gone or not self._busy

    def _start_thread(self) -> None:
        """Without one (the limit of processes is reached) lines are written directly."""
        thread = threading.Thread(target=self._write_on, name="screen", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._fd = None
            return
        self._thread = thread
        atexit.register(self._last_chance)

    def _last_chance(self) -> None:
        """At exit, for lines that no `finish` has waited for."""
        with self._change:
            self._change.wait_for(self._is_idle, AT_EXIT)

    def _write_on(self) -> None:
        """Write what is there, then wait for more: the thread does this until the reader has left."""
        while not self._gone:
            with self._change:
                if not (self.waiting_lines or self._unshown or self._table != self._drawn):
                    self._busy = False
                    self._change.notify_all()
                    self._change.wait()
                    continue
                text = self._compose(self._take(), self._table)
            self._put(text.encode(self._encoding, "backslashreplace"))

    def _take(self) -> list[str]:
        lines = self.waiting_lines
        self.waiting_lines = []
        self._size = 0
        if self._unshown:
            lines.append(not_shown(self._unshown, self.logs_complete))
            self._unshown = 0
        return lines

    def _put(self, data: bytes) -> None:
        assert self._fd is not None
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # another program has set the terminal so
                writable = select.poll()
                writable.register(self._fd, select.POLLOUT)
                writable.poll(1000)
            except OSError:
                self._drop()
                return

    def _drop(self) -> None:
        with self._change:
            self._gone = True
            self._busy = False
            self.waiting_lines = []
            self._change.notify_all()


def _blocking_descriptor(stream: TextIO) -> int | None:
    """Return the descriptor where a write may wait for a reader; None for files and for streams without one."""
    try:
        descriptor = stream.fileno()
        kind = os.fstat(descriptor).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    if stat.S_ISREG(kind):
        return None
    return descriptor
