"""Where our options end and the training command begins, and values that an empty shell variable left behind.

For commands that start a program, the first word that is not an option, or `-m MODULE`, begins it, as with torchrun.
Nothing behind it is ours. `--` is accepted in front of it, and needed only where its first word begins with `-`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from allranks.errors import UsageError
from allranks.settings.setting import SettingRow

MODULE = "-m"


@dataclass
class CommandLine:
    """A command line in its parts: our words, each option with the word that is its value, the training command."""

    words: list[str] = field(default_factory=list)
    separate_values: list[tuple[SettingRow, str, str]] = field(default_factory=list)  # row, option as typed, value
    attached_values: list[tuple[str, str]] = field(default_factory=list)  # option as typed, value behind its =
    command: list[str] = field(default_factory=list)


def split(words: Sequence[str], rows: Iterable[SettingRow], takes_command: bool) -> CommandLine:
    """Divide a command line. Judges nothing: see `refuse_empty_values`."""
    by_name = {name: row for row in rows for name in row.names}
    renamed = {name: row.option for row in by_name.values() for name in row.former_options.split()}
    switches = {switch.partition("=")[0]: row for row in by_name.values() for switch in row.switches.split()}
    line = CommandLine()
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            if takes_command:
                line.command = list(words[at + 1 :])
            else:
                line.words += words[at:]
            return line
        is_option = word.startswith("-") and word != "-"
        if takes_command and (word == MODULE or not is_option):
            line.command = list(words[at:])
            return line
        at += 1
        if not is_option:
            line.words.append(word)
            continue
        name, equals, value = word.partition("=")
        if name not in by_name and name.replace("_", "-") in {*by_name, *switches}:
            name = name.replace("_", "-")
        name = renamed.get(name, name)
        if name in switches and not equals:
            line.words.append(f"{switches[name].option}={switches[name].value_of(name)}")
            continue
        line.words.append(name + equals + value)
        row = by_name.get(name)
        if equals:
            line.attached_values.append((name, value))
        elif row is not None and not row.parser.is_flag and at < len(words):
            line.separate_values.append((row, name, words[at]))
            line.words.append(words[at])
            at += 1
    return line


def refuse_empty_values(line: CommandLine) -> None:
    """Refuse what `--option $VARIABLE` becomes where the variable is empty: the next word is taken for the value."""
    for name, value in line.attached_values:
        if not value:
            raise UsageError(f"{name}= has an empty value. A shell variable was probably empty")
    for row, name, value in line.separate_values:
        if not value:
            raise UsageError(f"{name} has an empty value. A shell variable was probably empty")
        if value.startswith("-") and value != "-" and not row.may_begin_with_dash:
            reason = "is an option"
        elif value.endswith(".py") and not row.parser.is_path and os.path.isfile(value):
            reason = "is a script"
        else:
            continue
        raise UsageError(
            f"{name} has the value {value}, which {reason}. A shell variable was probably empty\n"
            f"hint: write {name}={value} if that is meant"
        )
    if line.command[:1] == [MODULE] and (len(line.command) < 2 or line.command[1].startswith("-")):
        raise UsageError("-m has no module behind it. A shell variable was probably empty\nhint: -m PACKAGE.MODULE")
