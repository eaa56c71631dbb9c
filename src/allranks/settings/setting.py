"""What is said of one setting: how it is written, its help, and which commands take it (pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from ..cluster.names import show
from ..errors import ConfigError
from ..protocol.jsontext import Json
from .parsers import Parser

Value = TypeVar("Value")
Words = ParamSpec("Words")
# The panels of help, in their order; OPTIONS holds what one command alone takes.
WHERE = "Where"
LAUNCH = "Command and environment"
PREFLIGHT = "Preflight"
SLURM = "Slurm"
SKYPILOT = "SkyPilot"
OPTIONS = "Options"
PANELS = (
    WHERE, LAUNCH, "Network", PREFLIGHT, "Collective tests", "Fault tolerance", "Limits", "Output", SLURM, "Kubernetes",
    SKYPILOT,
)  # fmt: skip


@dataclass(frozen=True)
class SettingRow:
    """One setting, or an option of one command.

    `name` is a field of a group of RunSpec, or the keyword by which a command gets its own option. `commands` are
    those that take it, separated by spaces. `options` are its names on the command line where they do not follow
    from `name`, the first one shown in messages. `switches` are options that stand for one of its values, as
    --option=value. `example` is its value in the template of allranks.toml, in TOML, where the default would say
    little. `common` are the commands whose `--help` shows it; `--help-all` shows all. `default` and `panel` of a
    setting come from its field and its group, unless the row names a panel. `variables` are read from the environment.
    `engines` need it: without one of them the option is refused. `in_file` is false for what has no key in
    allranks.toml. A flag that is on by default has an option that begins with --no- and switches it off.
    """

    name: str
    parser: Parser
    help: str
    commands: str = ""
    options: str = ""
    switches: str = ""
    metavar: str = ""
    example: str = ""
    variables: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    common: str = ""
    default: Json = None
    panel: str = OPTIONS
    in_file: bool = True
    may_hold_secrets: bool = False
    may_begin_with_dash: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names on the command line, the one for messages first."""
        return tuple(self.options.split()) or ("--" + self.key,)

    @property
    def option(self) -> str:
        """The name for messages."""
        return self.names[0]

    @property
    def key(self) -> str:
        """The key in allranks.toml."""
        return self.name.replace("_", "-")

    @property
    def shown_metavar(self) -> str:
        """What stands for the value in help."""
        return self.metavar or self.parser.metavar

    @property
    def shown_default(self) -> str:
        """The default for people; empty where the help says what holds without it."""
        if self.default in (None, "", (), {}) or self.parser.is_flag:
            return ""
        return self.parser.write(self.default)

    def value_of(self, switch: str) -> str:
        """Return the value that one of its `switches` stands for; raise KeyError."""
        return dict(word.split("=", 1) for word in self.switches.split())[switch]

    def read(self, value: Json, where: str) -> Json:
        """Read a value that stands at `where`; raise ConfigError that says what was found and what to set."""
        try:
            return self.parser.read(value)
        except ValueError as why:
            shown = "a value that is not shown" if self.may_hold_secrets else show(value)
            raise ConfigError(f"{where}: found {shown}, set {why}") from None


def _declare(make: Callable[Concatenate[str, Words], SettingRow]) -> Callable[Concatenate[Value, Words], Value]:
    def declared(default: Value, /, *words: Words.args, **named: Words.kwargs) -> Value:
        metadata = {"row": make("", *words, **named)}
        field: Value
        if isinstance(default, dict):
            field = dataclasses.field(default_factory=lambda: copy(default), metadata=metadata)
        else:
            field = dataclasses.field(default=default, metadata=metadata)
        return field

    return declared


# A field of a group of RunSpec: its default, then what a row has after its name.
setting = _declare(SettingRow)
