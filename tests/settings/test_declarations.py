"""One table: the options of the commands, and what a command's function takes, agree."""

import ast
import dataclasses
import inspect
from pathlib import Path

import pytest

from allranks.cli.declare import Declared, DeclaredCommand, DeclaredGroup
from allranks.cli.main import VERBS, load
from allranks.settings.parsers import FLAG
from allranks.settings.runspec import GROUP_OF, RunSpec
from allranks.settings.setting import OPTIONS, PANELS
from allranks.settings.table import PANEL_OF, RENDERERS, SETTINGS

SOURCE = Path(__file__).parents[2] / "src" / "allranks"


def declarations() -> list[Declared]:
    """Of all commands, with those below a name."""
    found: list[Declared] = []
    for verb in VERBS:
        command = load(verb)
        commands = list(command.commands.values()) if isinstance(command, DeclaredGroup) else [command]
        found += [one.declared for one in commands if isinstance(one, DeclaredCommand)]
    return found


COMMANDS = declarations()


def fields_of(group: str) -> tuple[dataclasses.Field[object], ...]:
    return dataclasses.fields(getattr(RunSpec(), group))


@pytest.mark.parametrize("declared", COMMANDS, ids=lambda declared: declared.name)
def test_a_command_takes_what_it_declares(declared: Declared) -> None:
    """Click calls it by keyword: a missing or further name would be found only by a user."""
    wanted = {row.name for row in declared.options} | {one.name for one in declared.arguments}
    wanted |= {"typed"} if declared.settings else set()
    assert set(inspect.signature(declared.work()).parameters) == wanted | set(declared.fixed)


@pytest.mark.parametrize("declared", COMMANDS, ids=lambda declared: declared.name)
def test_no_two_options_of_a_command_have_one_name(declared: Declared) -> None:
    names = [name for row in declared.rows for name in row.names]
    assert len(names) == len(set(names)) > 0
    assert {row.panel for row in declared.rows} <= {*PANELS, OPTIONS}


@pytest.mark.parametrize("row", SETTINGS.values(), ids=lambda row: row.name)
def test_a_row_is_whole(row: object) -> None:
    setting = SETTINGS[getattr(row, "name", "")]
    assert setting.default == RunSpec().value(setting.name)
    assert setting.panel in PANELS
    assert set(setting.common.split()) <= set(setting.commands.replace("rendered", "render").split())
    assert set(setting.engines) <= set(RENDERERS)
    assert len(setting.help) <= 90 and not setting.help.endswith(".")
    assert setting.parser is not FLAG or isinstance(setting.default, bool)
    if setting.default not in (None, "", {}) and not setting.parser.repeats and setting.name != "env":
        assert setting.parser.read(setting.default) == setting.default
        assert setting.parser.is_flag or setting.parser.read(setting.shown_default) == setting.default


def test_groups_share_no_name() -> None:
    """Documents, files and options name a setting without its group."""
    names = [field.name for group in dataclasses.fields(RunSpec) for field in fields_of(group.name)]
    assert len(names) == len(set(names)) == len(GROUP_OF)
    assert set(PANEL_OF) == {group.name for group in dataclasses.fields(RunSpec)}


def test_settings_by_name_exist() -> None:
    """mypy does not see the keywords of `RunSpec.of(…)` and `spec.changed(…)`."""
    keywords = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if ".changed(" not in text and "RunSpec.of(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".changed", "RunSpec.of")):
                keywords |= {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    assert {"master_addr", "hang_pattern"} <= keywords <= set(GROUP_OF)
    with pytest.raises(TypeError, match="nprocs is not a setting"):
        RunSpec.of(nprocs=2)


def test_every_row_is_an_option_or_a_key() -> None:
    taken = {row.name for declared in COMMANDS for row in declared.rows}
    assert {name for name in SETTINGS if name not in taken} == {"command"}
