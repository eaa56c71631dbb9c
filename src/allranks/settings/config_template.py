"""The text that `allranks init` writes: every setting of allranks.toml with a comment.

A hostfile that was found here is active. All else is commented out with its default or an example, as `#key = value`
(no space), so that removing the `#` is enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

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


def commented_config(hosts: str = "") -> str:
    """Write the file's text; `hosts` is the hostfile that was found here."""
    lines = [_HEAD]
    for panel in PANELS:
        lines.append(f"\n# {panel}\n")
        lines += [_line(row, hosts) for row in _rows(panel)]
    return "".join(lines) + _TAIL


def _rows(panel: str) -> Iterator[SettingRow]:
    """Yield the settings of a panel with one target: a file cannot have two."""
    for row in SETTINGS.values():
        other_target = row.name in TARGETS and row.name not in ("hosts", "slurm")
        if row.panel == panel and row.in_file and row.name != "env" and not other_target:
            yield row


def _line(row: SettingRow, hosts: str) -> str:
    if row.name == "hosts" and hosts:
        return f"hosts = {toml_value(hosts)}  # {row.help} (found)\n"
    return f"#{row.key} = {row.example or _toml(row)}  # {row.help}\n"


def _toml(row: SettingRow) -> str:
    if isinstance(row.default, bool) or (isinstance(row.default, int) and row.parser.write is str):
        return toml_value(row.default)
    return toml_value(row.shown_default)


def toml_value(value: Json) -> str:
    """Write a value as TOML: JSON's texts, numbers and arrays are TOML's too, but for the escapes of surrogates.

    >>> toml_value({"A": "\\U0001f600", "B": [True, 2]})
    '{ "A" = "\\U0001f600", "B" = [true, 2] }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_value(name)} = {toml_value(one)}" for name, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
