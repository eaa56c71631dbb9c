"""What the words of a command run: Python with a script or a module, or another program (pure, Python 3.8)."""

from __future__ import annotations

import re
from typing import Optional, Sequence, Tuple

from .records import NamedTuple

SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_PYTHON = r"(.*/)?python(3(\.\d+)?)?\Z"
# Flags of python that take a value of their own (`python --help`).
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


class Words(NamedTuple):
    """`python` is the word the user wrote for the interpreter, None where none was.

    `flags` go before the script; `program` is the script or `-m module` with its arguments. `kind` is
    python-script, python-module, python-other (python that the runner can't take: -c, -, a directory)
    or program.
    """

    kind: str
    python: Optional[str]
    flags: Tuple[str, ...]
    program: Tuple[str, ...]

    @property
    def target(self) -> Optional[str]:
        """The script, the module or the program; None where there is none to look for."""
        if self.kind == "python-other":
            return None
        first = 1 if self.program[:1] == ("-m",) else 0
        return next(iter(self.program[first:]), None)


def read_command(command: Sequence[str], kind: Optional[str] = None) -> Words:
    """Split the words after `--`; `kind`, where another launcher has said it, decides: a program has no interpreter."""
    words = tuple(command)
    if kind == "program":
        return Words(kind, None, (), words)
    if words and re.match(_PYTHON, words[0]):
        flags, rest = _python_flags(words[1:])
        return Words(kind or _kind(rest), words[0], flags, rest)
    if words and (words[0] == "-m" or words[0].endswith((".py", ".pyw"))):
        return Words(kind or _kind(words), None, (), words)
    return Words("program", None, (), words)


def _python_flags(words: Tuple[str, ...]) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] not in ("-m", "-c", "-", "--"):
        index += 2 if words[index] in _WITH_VALUE else 1
    return words[:index], words[index:]


def _kind(rest: Tuple[str, ...]) -> str:
    if len(rest) > 1 and rest[0] == "-m":
        return "python-module"
    if rest and not rest[0].startswith("-") and rest[0].endswith((".py", ".pyw")):
        return "python-script"
    return "python-other"
