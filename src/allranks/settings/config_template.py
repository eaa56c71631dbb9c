"""The text that `allranks init` writes: every setting of allranks.toml with a comment.

Settings found on this machine are active. The others are commented out with their default or an example, as
`#key = value` (no space), so that removing the `#` is enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ..cluster.names import show
from ..errors import UsageError
from ..protocol.jsontext import Json
from .setting import PANELS, SettingRow
from .table import SETTINGS, TARGETS

_HEAD = "# allranks.toml: what `allranks run` assumes. An option or a variable overrides it.\n"
_TAIL = """
# Variables of the ranks
#forward = ["WANDB_API_KEY"]  # copied from your environment

#[env]
#OMP_NUM_THREADS = "8"
"""
_CANNOT_BE_FOUND = ("command", "ssh_options")


def commented_config(detected: Mapping[str, str]) -> str:
    """Write the file's text; `detected` maps settings (`hosts`, `nproc`, `local`, …) to the values detected."""
    values = {key.replace("_", "-"): value for key, value in detected.items()}
    target = "local" if "local" in values else "hosts"
    lines = [_HEAD]
    for panel in PANELS:
        lines.append(f"\n# {panel}\n")
        for row in _rows(panel, target):
            lines.append(_line(row, values))
    if values:
        raise UsageError(f"init: {', '.join(sorted(values))} is not a setting of allranks.toml")
    return "".join(lines) + _TAIL


def _rows(panel: str, target: str) -> Iterator[SettingRow]:
    """Yield the settings of a panel with one target: a file cannot have two."""
    for row in SETTINGS.values():
        other_target = row.name in TARGETS and row.name not in (target, "slurm")
        if row.panel == panel and row.in_file and row.name != "env" and not other_target:
            yield row


def _line(row: SettingRow, values: dict[str, str]) -> str:
    """One line; takes the value that it writes out of `values`."""
    if row.key in values:
        return f"{row.key} = {_found_value(row, values.pop(row.key))}  # {row.help} (found)\n"
    return f"#{row.key} = {row.example or _toml(row)}  # {row.help}\n"


def _toml(row: SettingRow) -> str:
    if isinstance(row.default, bool) or (isinstance(row.default, int) and row.parser.write is str):
        return toml_value(row.default)
    return toml_value(row.shown_default)


def _found_value(row: SettingRow, text: str) -> str:
    """Write a detected value as TOML, if the setting takes it."""
    if row.name in _CANNOT_BE_FOUND:
        raise UsageError(f"init cannot write a found value for {row.key}")
    try:
        value = row.parser.read(text)
        text.encode("utf-8")
    except ValueError as error:
        raise UsageError(f"init: {row.option} has {show(text)}, set {error}") from None
    return toml_value(value if isinstance(value, int) else text)


def toml_value(value: Json) -> str:
    """Write a value as TOML: JSON's texts, numbers and arrays are TOML's too, but for the escapes of surrogates.

    >>> toml_value({"A": "\\U0001f600", "B": [True, 2]})
    '{ "A" = "\\U0001f600", "B" = [true, 2] }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_value(name)} = {toml_value(one)}" for name, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
