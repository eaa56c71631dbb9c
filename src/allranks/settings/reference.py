"""docs/reference/settings.md: every setting with its names, default and meaning, from the table (pure)."""

from __future__ import annotations

from .table import PANELS, SETTINGS, TARGETS, SettingRow

_HEAD = """# Settings
<!-- `make pages` writes this page from src/allranks/settings/table.py. -->

A setting is an option of the commands that take it, a key of `allranks.toml` and, where one is named, a variable of the
environment. An option overrides a variable, that the `allranks.toml` here, that your `~/.config/allranks/config.toml`,
and that the default. `allranks init` writes an `allranks.toml` with all keys. Durations are `500ms`, `8s`, `10m`, `2h`
or a number of seconds. Sizes are `64KB`, `256MB`, `1GB` or a number of bytes.
"""
_COLUMNS = """
| option | key | default | meaning | commands |
|---|---|---|---|---|
"""
_TAIL = """
Variables of the ranks stand in the table `[env]` of the file, and names that are copied from your environment in
`forward = ["WANDB_API_KEY"]`.
"""


def reference_page() -> str:
    """Write the page in Markdown."""
    parts = [_HEAD]
    for panel in PANELS:
        rows = [row for row in SETTINGS.values() if row.panel == panel]
        parts.append(f"\n## {panel}\n{_COLUMNS}" + "".join(_line(row) for row in rows))
    return "".join(parts) + _TAIL


def _line(row: SettingRow) -> str:
    options = ", ".join(f"`{name}`" for name in row.names) if row.commands else ""
    if options and not row.parser.is_flag:
        options += f" {_cell(row.shown_metavar)}"
    key = f"`{row.key}`" if row.in_file and row.name != "env" else ""
    meaning = row.help
    if row.engines:
        meaning += f" (with {' or '.join('`--' + engine + '`' for engine in row.engines)})"
    if row.name in TARGETS:
        meaning += " (one target at a time)"
    if row.variables:
        meaning += f" [env: {', '.join(row.variables)}]"
    return f"| {options} | {key} | {_default(row)} | {_cell(meaning)} | {_commands(row)} |\n"


def _default(row: SettingRow) -> str:
    if isinstance(row.default, bool):
        return "on" if row.default else "off"
    return f"`{row.shown_default}`" if row.shown_default else ""


def _commands(row: SettingRow) -> str:
    """Name the commands that take a setting; `rendered` are those inside what `render` writes."""
    names = ["render slurm, kubernetes, skypilot" if name == "rendered" else name for name in row.commands.split()]
    return ", ".join(names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
