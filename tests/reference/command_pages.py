"""docs/reference/commands: a page for each verb, from its declaration and the table of settings."""

from collections.abc import Iterator

import click
from tests.reference.explained_pages import block
from tests.reference.settings_page import cell, default_of, key_of, meaning_of, options_of

from allranks.cli.declare import DeclaredCommand, DeclaredGroup
from allranks.cli.main import VERBS, load
from allranks.settings.setting import OPTIONS, PANELS, SettingRow

_COLUMNS = "| option | default | environment | key | meaning |\n|---|---|---|---|---|\n"


def commands_index() -> str:
    rows = "".join(f"| [{verb}](commands/{verb}.md) | {cell(text)} |\n" for verb, text in VERBS.items())
    names = "".join(f"commands/{verb}\n" for verb in VERBS)
    return f"""# Commands
<!-- `make pages` writes this page and those below commands/ from the declarations in src/allranks/cli. -->

The word behind `allranks` is the verb. Every command has `--help`, and the same [exit codes](exit-codes.md).
Options that several commands take are [settings](settings.md), and have a key in `allranks.toml`.

| command | what it does |
|---|---|
{rows}
```{{toctree}}
:hidden:

{names}```
"""


def pages_of_commands() -> Iterator[tuple[str, str]]:
    """The name of each page below docs/reference, and its text."""
    for verb in VERBS:
        command = load(verb)
        parts = [f"# allranks {verb}\n"]
        if isinstance(command, DeclaredGroup):
            parts += [f"{command.verbs.help}\n\n", block([f"allranks {command.verbs.example}"])]
            for name, below in command.commands.items():
                assert isinstance(below, DeclaredCommand)
                parts += [f"\n## allranks {verb} {name}\n", *_command(below, f"allranks {verb} {name}", "###")]
        else:
            assert isinstance(command, DeclaredCommand)
            parts += _command(command, f"allranks {verb}", "##")
        yield f"commands/{verb}.md", "".join(parts)


def _command(command: DeclaredCommand, name: str, heading: str) -> Iterator[str]:
    declared = command.declared
    context = click.Context(command, info_name=name)
    yield f"{declared.help}\n"
    yield "\n" + block([" ".join([name, *command.collect_usage_pieces(context)])])
    examples = [f"allranks {example}" for example in declared.examples]
    yield f"\n{heading} Example{'s' if len(examples) > 1 else ''}\n{block(examples)}"
    if command.arguments:
        rows = "".join(f"| `{cell(one.metavar)}` | {cell(one.help)} |\n" for one in command.arguments)
        yield f"\n{heading} Arguments\n| argument | meaning |\n|---|---|\n{rows}"
    shown = declared.rows
    for panel in (*PANELS, OPTIONS):
        rows = "".join(_row(row) for row in shown if row.panel == panel)
        if rows:
            yield f"\n{heading} {panel}\n{_COLUMNS}{rows}"


def _row(row: SettingRow) -> str:
    variables = ", ".join(f"`{name}`" for name in row.variables)
    default = default_of(row)
    meaning = meaning_of(row)
    if row.parser.is_flag:
        default = ""
        if row.default is True:
            meaning = f"do not {meaning}"
    return f"| {options_of(row)} | {default} | {variables} | {key_of(row)} | {cell(meaning)} |\n"
