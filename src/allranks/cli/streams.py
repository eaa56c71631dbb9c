"""Standard output and error of a command: the one place through which all goes that it prints.

They cannot crash it: a full disk, a reader that left, a stream that was closed. They write nothing that could move the
cursor or set a title: names of nodes, lines of logs and words of other machines are in what is printed.

A run goes on without its terminal, and its result is in its directory. A command that only prints ends there.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from allranks import exitcodes
from allranks.report.terminal import clean_lines, redraw_line, wants_colour


class OutputLost(BaseException):
    """Standard output is closed, and the command has nothing else to do. It ends a command as SystemExit does."""


class Guarded:
    """A stream whose first error is kept, and all that follows dropped; OutputLost then, where `ends` is set.

    Text is cleaned; on a terminal, or where they are wanted, it keeps its colours. `put` takes our own escapes.
    """

    colours = "auto"  # of both streams: what --color says

    def __init__(self, stream: TextIO, ends: bool) -> None:
        self._stream = stream
        self.ends = ends
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def shows_colour(self) -> bool:
        """Tell whether colours are written: --color, NO_COLOR, FORCE_COLOR, else whether it is a terminal."""
        environ = os.environ
        is_terminal = self._stream.isatty() and environ.get("TERM") != "dumb"
        return wants_colour(self.colours, is_terminal, environ.get("NO_COLOR", ""), environ.get("FORCE_COLOR", ""))

    def write(self, text: str) -> int:
        """All of the text is taken, whatever becomes of it."""
        self.put(clean_lines(text, self.shows_colour))
        return len(text)

    def put(self, text: str) -> None:
        """Write text as it is."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._lose(error)

    def writelines(self, lines: Iterable[str]) -> None:
        """One after the other."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Pass on what was written."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Keep the error, and drop what is buffered into /dev/null: Python would try it again at its end."""
        self.error = self.error or error
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        if self.ends:
            raise OutputLost


def agent_streams() -> None:
    """Open the standard streams that are closed as /dev/null, and agent output and error."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest descriptor that is free: this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  (for the process's life)
    sys.stdout = _guarded(sys.stdout, 1, ends=True)
    sys.stderr = _guarded(sys.stderr, 2, ends=False)


def _guarded(stream: TextIO | None, descriptor: int, ends: bool) -> Any:
    return Guarded(stream or open(descriptor, "w", errors="backslashreplace", closefd=False), ends)


def go_on_without_output() -> None:
    """Let the command go on when its output is lost: it has more to do than to print."""
    if isinstance(sys.stdout, Guarded):
        sys.stdout.ends = False


def exit_code(code: int) -> int:
    """Write out all output, and return the exit code. Lost output is reported, unless its reader has just left."""
    if not isinstance(sys.stdout, Guarded):
        return code
    only_prints = sys.stdout.ends
    go_on_without_output()
    sys.stdout.flush()
    error = sys.stdout.error
    if error is not None and error.errno != errno.EPIPE:
        where = "" if only_prints else ". result.json in the run's directory has the result"
        sys.stderr.write(f"allranks: standard output cannot be written ({error.strerror}){where}\n")
        if only_prints:
            code = code or exitcodes.USAGE
    sys.stderr.flush()
    return code


class ProgressLine:
    """One line that says what is going on; on a terminal it is drawn over itself."""

    def __init__(self, silent: bool) -> None:
        self._terminal = sys.stderr.isatty() and not silent
        self._silent = silent
        self._said = ""

    def show(self, what: str, done: int, of: int) -> None:
        """Show how far a step is."""
        if self._terminal:
            redraw_line(sys.stderr, f"{what}: {done} of {of}")
        elif not self._silent and what != self._said:
            sys.stderr.write(f"{what} …\n")
        self._said = what

    def end(self) -> None:
        """Remove the line."""
        if self._terminal:
            redraw_line(sys.stderr, "")
