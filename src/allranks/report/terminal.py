"""What of a text may reach a terminal, and how wide that is.

Two places write to one: `cli.streams`, which stands for standard output and error, and `screen`, for what is drawn
again and again. Both clean all that they write. Our own cursor movements go to the stream below.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TextIO

# Of other escapes than colours: control sequences, commands to the terminal (its title), two-character escapes.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OTHER_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-ln-z@`]|\][^\x07\x1b]*(\x07|\x1b\\)?|[^\[\]])")
# Control characters of both sets, and those that change the direction or the line of what follows (UAX #9, #14).
_CONTROL = re.compile(
    "[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|\x1b(?!\\[[0-9;]*m)"
)
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_RESET = "\x1b[0m"
# Styles of `paint`.
BAD = "\x1b[31m"
WARN = "\x1b[33m"
GOOD = "\x1b[32m"
UNSURE = "\x1b[36m"
DIM = "\x1b[2m"
BOLD = "\x1b[1m"
BOLD_BAD = "\x1b[1;31m"
# What of a run, node or rank is not as it should be.
STATE_STYLES = {
    "lost": BAD,
    "failed": BAD,
    "unreachable": BAD,
    "killed": BAD,
    "silent": WARN,
    "away": WARN,
    "unfit": WARN,
    "orphaned": WARN,
}
# How a line of ours begins, and its style. A line of a rank begins with `[`.
LINE_STYLES = (
    ("VERDICT ", BOLD_BAD),
    ("verdict: ", BOLD_BAD),
    ("FAIL: ", BAD),
    ("LEFT ", BAD),
    ("warning: ", WARN),
    ("suspected ", WARN),
    ("done after ", GOOD),
)


def clean(text: str, colour: bool) -> str:
    """Remove what could move the cursor or set the title from a line; colours stay where wanted, and end with it."""
    if text.isprintable():  # the quick way for most lines: all of the patterns below are of what is not
        return text
    if "\x1b" in text:
        text = _OTHER_ESCAPES.sub("", text)
        if not colour:
            text = _COLOUR.sub("", text)
    text = _CONTROL.sub("?", text)
    if "\x1b" in text and not text.endswith((_RESET, "\x1b[m")):
        return text + _RESET
    return text


def one_line(text: str) -> str:
    """Clean foreign words for a sentence of ours, in which breaks of lines are blanks."""
    return text if text.isprintable() else clean(" ".join(text.splitlines()), colour=False)


def clean_lines(text: str, colour: bool) -> str:
    """Clean each line of a text."""
    if not _UNSAFE.search(text):
        return text
    return "\n".join(clean(line, colour) for line in text.split("\n"))


def paint(text: str, style: str, colour: bool) -> str:
    """Put a style around a text, where colours are written."""
    return f"{style}{text}{_RESET}" if colour and style and text else text


def paint_line(line: str, colour: bool) -> str:
    """Paint a line of ours that tells of a failure, a verdict or a warning."""
    style = next((style for start, style in LINE_STYLES if line.startswith(start)), "")
    return paint(line, style, colour)


def shown_length(text: str) -> int:
    """Count the characters of a text that a terminal shows."""
    return len(_COLOUR.sub("", text)) if "\x1b" in text else len(text)


def wants_colour(choice: str, is_terminal: bool, no_color: str, force_color: str) -> bool:
    """Tell whether colours are written. `choice` is auto, always or never, the others are as in the environment.

    An empty value says nothing (no-color.org, force-color.org), and NO_COLOR is stronger, as in Python 3.13.
    """
    if choice != "auto":
        return choice == "always"
    if no_color:
        return False
    if force_color:
        return force_color != "0"
    return is_terminal


def shows_colour(stream: TextIO) -> bool:
    """Tell whether what is written to a stream keeps its colours: only standard output and error of a command do."""
    return bool(getattr(stream, "shows_colour", False))


def window_size(stream: TextIO, columns: int, lines: int) -> tuple[int, int]:
    """Return columns and lines of a terminal's window; the given ones where it does not say."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return columns, lines
    return size.columns or columns, size.lines or lines


def write_unfiltered(stream: TextIO, text: str) -> None:
    """Write past a stream that cleans: cursor movements of our own, and nothing else."""
    put: Callable[[str], object] = getattr(stream, "put", stream.write)
    put(text)


def redraw_line(stream: TextIO, text: str) -> None:
    """Write a line over the one that the cursor is in."""
    write_unfiltered(stream, "\r\x1b[K" + clean(text, colour=False))
    stream.flush()


def redraw_lines(stream: TextIO, rows: int, lines: list[str], colour: bool = False) -> None:
    """Write lines over the last `rows` rows. Their colours stay where `colour` is set."""
    up = f"\x1b[{rows}A\x1b[J" if rows else ""
    write_unfiltered(stream, up + "".join(clean(line, colour) + "\n" for line in lines))
    stream.flush()
