"""A RunSpec as the words of a command line that gives it again (pure). What is at its default is left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from ..protocol.jsontext import Json
from .runspec import RunSpec
from .secrets import is_secret_name
from .setting import SettingRow
from .table import settings_of


def as_options(spec: RunSpec, command: str, without: Collection[str] = ()) -> list[str]:
    """Options of `command` (run or join) and, after `--`, the training command.

    The cluster is not among them: the settings that it has given are.

    Values of secret variables are never in it: their names are forwarded, so the environment of that command line must
    have them (`secret_values`).
    """
    words: list[str] = []
    for row in settings_of(command):
        value = spec.value(row.name)
        if row.name not in ("env", "cluster") and row.name not in without and value != row.default:
            words += _option(row, value)
    secret = secret_values(spec)
    words += [f"--env={name}={value}" for name, value in sorted(spec.launch.env.items()) if name not in secret]
    words += [f"--env={name}" for name in sorted({*spec.launch.forward, *secret})]
    if spec.launch.command:
        words += ["--", *spec.launch.command]
    return words


def secret_values(spec: RunSpec) -> dict[str, str]:
    """Return the variables of `env` that must not stand in any command line."""
    return {name: value for name, value in spec.launch.env.items() if is_secret_name(name)}


def _option(row: SettingRow, value: Json) -> list[str]:
    if isinstance(value, bool):
        return [row.option]
    if isinstance(value, tuple):
        return [f"{row.option}={item}" for item in value]
    if isinstance(value, float):
        return [f"{row.option}={value:g}"]
    return [f"{row.option}={value}"]


PLACEHOLDERS = ("run", "output_dir", "attempt")
_NAME = re.compile(r"(?<![{$\\])\{([A-Za-z_][A-Za-z0-9_-]{0,40})\}(?!\})")


def used(command: Sequence[str]) -> list[str]:
    """List the placeholders that a command has."""
    return [match[0] for word in command for match in _NAME.finditer(word) if match[1] in PLACEHOLDERS]


def fill(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Put the values into the words of a command.

    >>> fill(["--out={output_dir}/a{attempt}", "{epoch}", '{"a": {}}', "{{run}}"], {"output_dir": "/o", "attempt": "1"})
    ('--out=/o/a1', '{epoch}', '{"a": {}}', '{{run}}')
    """
    return tuple(_NAME.sub(lambda match: values.get(match[1], match[0]), word) for word in command)
