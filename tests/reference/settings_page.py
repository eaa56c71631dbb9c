"""docs/reference/settings.md: every setting with its names, default and meaning, from the table."""

from allranks.settings.roles import ROLE_KEYS
from allranks.settings.setting import PANELS, SettingRow
from allranks.settings.table import SETTINGS, TARGETS

_HEAD = """# Settings
<!-- `make pages` writes this page from src/allranks/settings/runspec.py. -->

A setting is an option of the commands that take it, a key of `allranks.toml` and, where one is named, a variable of the
environment. An option overrides a variable, that the `allranks.toml` here, that your `~/.config/allranks/config.toml`,
and that the default. `allranks init` writes an `allranks.toml` with all keys. Durations are `500ms`, `8s`, `10m`, `2h`
or a number of seconds. Sizes are `64KB`, `256MB`, `1GB` or a number of bytes.
"""
_COLUMNS = """
| option | key | default | meaning | commands |
|---|---|---|---|---|
"""
_ROLES = """
## Roles
A table `[roles.NAME]` of `allranks.toml`, or of the file of `--roles`, is a [role](glossary.md#role).

| key | example | meaning |
|---|---|---|
"""
_TAIL = """
Variables of the ranks stand in the table `[env]` of the file, and names that are copied from your environment in
`forward = ["WANDB_API_KEY"]`.
"""


def settings_page() -> str:
    parts = [_HEAD]
    for panel in PANELS:
        rows = [row for row in SETTINGS.values() if row.panel == panel]
        parts.append(f"\n## {panel}\n{_COLUMNS}" + "".join(_line(row) for row in rows))
    roles = [f"| `{key}` | `{cell(row.example)}` | {cell(row.help)} |\n" for key, row in ROLE_KEYS.items()]
    return "".join([*parts, _ROLES, *roles]) + _TAIL


def _line(row: SettingRow) -> str:
    options = options_of(row) if row.commands else ""
    variables = f" [env: {', '.join(row.variables)}]" if row.variables else ""
    meaning = cell(meaning_of(row) + variables)
    return f"| {options} | {key_of(row)} | {default_of(row)} | {meaning} | {_commands(row)} |\n"


def options_of(row: SettingRow) -> str:
    options = ", ".join(f"`{name}`" for name in row.names)
    return options if row.parser.is_flag else f"{options} {cell(row.shown_metavar)}"


def key_of(row: SettingRow) -> str:
    return f"`{row.key}`" if row.in_file and row.name in SETTINGS and row.name != "env" else ""


def default_of(row: SettingRow) -> str:
    if isinstance(row.default, bool):
        return "on" if row.default else "off"
    return f"`{row.shown_default}`" if row.shown_default else ""


def meaning_of(row: SettingRow) -> str:
    meaning = row.help
    if row.engines:
        meaning += f" (with {' or '.join('`--' + engine + '`' for engine in row.engines)})"
    if row.name in TARGETS:
        meaning += " (one target at a time)"
    return meaning


def _commands(row: SettingRow) -> str:
    """Link the commands that take a setting; `rendered` are those inside what `render` writes."""
    names = row.commands.split()
    links = [f"[{name}](commands/{name}.md)" for name in names if name != "rendered"]
    if "rendered" in names and "render" not in names:
        links.append("[render](commands/render.md)")
    return ", ".join(links)


def cell(text: str) -> str:
    return text.replace("|", "\\|")
