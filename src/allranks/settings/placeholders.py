"""Placeholders in the words of a training command: `{run}`, `{output_dir}` and `{attempt}` (pure).

A program may have braces of its own: what is written otherwise goes through as it is, and so do `${run}` and `{{run}}`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from allranks.errors import UsageError

PLACEHOLDERS = ("run", "output_dir", "attempt")
NEAR = 0.8  # of difflib: a name that is so near to one of them is a slip
_NAME = re.compile(r"(?<![{$\\])\{([A-Za-z_][A-Za-z0-9_-]{0,40})\}(?!\})")


def refuse_slips(command: Sequence[str]) -> None:
    """Raise UsageError for a name in braces that is nearly a placeholder.

    >>> refuse_slips(["train.py", "--out", "{output_dir}/{epoch}", '{"run": 1}', "${run}"])
    """
    for word in command:
        for match in _NAME.finditer(word):
            name = match[1]
            near = difflib.get_close_matches(name.lower().replace("-", "_"), PLACEHOLDERS, 1, NEAR)
            if near and name not in PLACEHOLDERS:
                names = ", ".join("{" + placeholder + "}" for placeholder in PLACEHOLDERS)
                raise UsageError(
                    f"the command has {match[0]}, which is unknown: placeholders are {names}\n"
                    f"hint: write {{{near[0]}}}, or {{{match[0]}}} where the program itself has such a name"
                )


def used(command: Sequence[str]) -> list[str]:
    """List the placeholders that a command has."""
    return [match[0] for word in command for match in _NAME.finditer(word) if match[1] in PLACEHOLDERS]


def fill(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Put the values into the words of a command.

    >>> fill(["--out={output_dir}/a{attempt}", "{epoch}", '{"a": {}}', "{{run}}"], {"output_dir": "/o", "attempt": "1"})
    ('--out=/o/a1', '{epoch}', '{"a": {}}', '{{run}}')
    """
    return tuple(_NAME.sub(lambda match: values.get(match[1], match[0]), word) for word in command)
