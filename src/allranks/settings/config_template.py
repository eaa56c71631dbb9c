"""The text that `allranks init` writes: every setting of allranks.toml with a comment.

A hostfile that was found here is active. All else is commented out with its default or an example, as `#key = value`
(no space), so that removing the `#` is enough.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

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
    others = {"env", *TARGETS} - {"hosts", "slurm"}  # a file cannot have two targets
    for panel in PANELS:
        lines.append(f"\n# {panel}\n")
        for row in SETTINGS.values():
            if row.panel != panel or not row.in_file or row.name in others:
                continue
            if row.name == "hosts" and hosts:
                lines.append(f"hosts = {toml_value(hosts)}  # {row.help} (found)\n")
            else:
                lines.append(f"#{row.key} = {row.example or _default(row)}  # {row.help}\n")
    return "".join(lines) + _TAIL


def _default(row: SettingRow) -> str:
    is_itself = isinstance(row.default, bool) or (isinstance(row.default, int) and row.parser.write is str)
    return toml_value(row.default if is_itself else row.shown_default)


def toml_value(value: Json) -> str:
    """Write a value as TOML: JSON's texts, numbers and arrays are TOML's too, but for the escapes of surrogates.

    >>> toml_value({"A": "\\U0001f600", "B": [True, 2]})
    '{ "A" = "\\U0001f600", "B" = [true, 2] }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_value(name)} = {toml_value(one)}" for name, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
