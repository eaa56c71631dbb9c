"""How a command is declared, and the Click command that is made of it.

A command's module holds one `Declared` (or a group of them): which settings it takes, its own options, and the function
that does the work. The function gets the settings as `typed` (by their names) and its own options by keyword,
read by their parsers; it returns an exit code.
"""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import click

from allranks import early
from allranks.errors import AllranksError, UsageError
from allranks.protocol.jsontext import Json
from allranks.report.terminal import shows_colour
from allranks.settings.parsers import FLAG, choice, path
from allranks.settings.setting import OPTIONS, PANELS, SettingRow
from allranks.settings.table import SETTINGS, suggestion
from allranks.text import join_words

from . import streams

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Given = Mapping[str, Json]
HELP = ["-h", "--help"]
HELP_ALL = "--help-all"
CONTEXT = {"help_option_names": HELP, "max_content_width": 110}  # of every command
HELP_VERB = "help"
HELP_OF_HELP = "print this help"
MOST_SHOWN = 24  # visible options from which on --help shows the common ones
EXAMPLE_WIDTH = 70  # characters of an example's line, which fits a terminal of 80
WIDEST = 26  # characters of the column of names in help
PATH = path("the path of a file")
AS_JSON = SettingRow("json_", FLAG, "print JSON", options="--json")
DRY_RUN = SettingRow("dry_run", FLAG, "print what would be done, do nothing")
CONFIG = SettingRow(
    "config",
    path("the path of a settings file", "FILE"),
    "settings file [default: allranks.toml]",
    variables=("ALLRANKS_CONFIG",),
)
COLOR = SettingRow(
    "color",
    choice("auto", "always", "never"),
    "colours (auto: on a terminal)",
    default="auto",
    variables=("NO_COLOR", "FORCE_COLOR"),
)
RUNS_DIR = SETTINGS["runs_dir"]


def quiet(what: str) -> SettingRow:
    """Make the option that prints less; `what` says what is left."""
    return SettingRow("quiet", FLAG, what, options="-q --quiet")


class Argument(NamedTuple):
    """An argument of a command. `many`: it takes several words. `names_run`: a shell offers the runs."""

    name: str
    metavar: str
    help: str
    many: bool = False
    required: bool = False
    names_run: bool = False


RUN = Argument("run", "[RUN]", "run directory or name [default: the newest run]", names_run=True)


@dataclass(frozen=True)
class Declared:
    """One command. With `command_help` it takes a training command.

    `function` of the module of its verb does the work: it is imported when the work begins. `fixed` are further
    keywords for it. `verb` is the first word of the command line where that is not `name`.
    """

    name: str
    help: str
    examples: tuple[str, ...]
    settings: tuple[SettingRow, ...] = ()
    options: tuple[SettingRow, ...] = ()
    arguments: tuple[Argument, ...] = ()
    command_help: str = ""
    fixed: Mapping[str, Json] = field(default_factory=dict)
    verb: str = ""
    function: str = "command"

    @property
    def rows(self) -> tuple[SettingRow, ...]:
        """All options. Every command takes --color: it may paint words, or show what ranks have painted."""
        return (*self.settings, *self.options, COLOR)

    @property
    def common_rows(self) -> tuple[SettingRow, ...]:
        """The options of the short help: all of them where they are few."""
        rows = self.rows
        if len(rows) <= MOST_SHOWN:
            return rows
        verb = self.verb or self.name
        return tuple(row for row in rows if not row.commands or verb in row.common.split())

    def work(self) -> Callable[..., int]:
        """Import the function that does the work."""
        module = importlib.import_module(f"allranks.cli.{self.verb or self.name}")
        work: Callable[..., int] = getattr(module, self.function)
        return work


@dataclass(frozen=True)
class DeclaredVerbs:
    """Commands below one name, such as `render slurm`."""

    name: str
    help: str
    example: str
    commands: tuple[Declared, ...]


@dataclass
class AskedLine:
    """What is known of a command line before it is judged: errors are JSON where --json was ours."""

    as_json: bool = False


class PathText(click.types.StringParamType):
    """A path, or any word. A shell completes it. Click's own type looks for the file, on a disk that may not answer."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell list files."""
        from click.shell_completion import CompletionItem  # imported late: only a shell asks

        return [CompletionItem(incomplete, type="file")]


class RowOption(click.Option):
    """An option of Click made of a row. In `brief` help it has one long name and its letters, and no variables."""

    def __init__(self, row: SettingRow, brief: bool = False) -> None:
        self.row = row
        help_text = row.help
        if row.parser.is_flag and row.default is True:
            help_text = f"do not {help_text}"
        if row.shown_default:
            help_text += f" [default: {row.shown_default}]"
        names = list(row.names)
        if brief:
            further = [name for name in names if name.startswith("--")][1:]
            names = [name for name in names if name not in further]
        elif row.variables:
            help_text += f" [env: {', '.join(row.variables)}]"
        value_type: type | PathText = bool if row.parser.is_flag else str
        if row.parser.is_path:
            value_type = PathText()
        super().__init__(
            [*names, "option_" + row.name],
            help=help_text,
            is_flag=row.parser.is_flag,
            multiple=row.parser.repeats,
            metavar=None if row.parser.is_flag else row.shown_metavar,
            default=False if row.parser.is_flag else None,
            type=value_type,
            shell_complete=self._offers if row.parser.choices else None,
        )

    def _offers(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in self.row.parser.choices if word.startswith(incomplete)]


class WordArgument(click.Argument):
    """An argument of one word, or of several."""

    def __init__(self, argument: Argument) -> None:
        self.argument = argument
        count = -1 if argument.many else 1
        super().__init__(
            ["argument_" + argument.name],
            nargs=count,
            required=argument.required,
            metavar=argument.metavar,
            type=PathText(),
            shell_complete=_runs_or_files if argument.names_run else None,
        )


class DeclaredCommand(click.Command):
    """The Click command of a declaration."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        arguments = list(declared.arguments)
        if declared.command_help:
            arguments.append(Argument("command", "[COMMAND...]", declared.command_help, many=True))
        self.arguments = arguments
        params: list[click.Parameter] = [WordArgument(argument) for argument in arguments]
        params += map(RowOption, declared.rows)
        has_more = len(declared.common_rows) < len(declared.rows)
        params.append(_help_all(hidden=not has_more))
        examples = "\n\n".join(example_text(example) for example in declared.examples)
        super().__init__(
            declared.name,
            params=params,
            help=f"{declared.help}\n\n{examples}",
            context_settings=CONTEXT,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Divide the line first: Click sees our words and, behind --, the training command."""
        takes_command = bool(self.declared.command_help)
        line = split(args, self.declared.rows, takes_command)
        if isinstance(ctx.obj, AskedLine):
            ctx.obj.as_json = "--json" in line.words
        asks_for_help = any(word in (*HELP, HELP_ALL) for word in line.words)
        if not ctx.resilient_parsing and not asks_for_help:
            refuse_empty_values(line)
        words = line.words
        if takes_command:
            words = [*words, "--", *line.command]
        return super().parse_args(ctx, words)

    def invoke(self, ctx: click.Context) -> int:
        """Call the declared function."""
        typed = ctx.params
        keywords: dict[str, Json | Given] = dict(self.declared.fixed)
        for row in self.declared.options:
            keywords[row.name] = _own_value(row, typed["option_" + row.name])
        streams.Guarded.colours = str(_own_value(COLOR, typed["option_" + COLOR.name]))
        for argument in self.declared.arguments:
            keywords[argument.name] = typed["argument_" + argument.name]
        if self.declared.settings:
            keywords["typed"] = self.typed_settings(ctx)
        work = self.declared.work()
        early.end()
        return int(work(**keywords) or 0)

    def typed_settings(self, ctx: click.Context) -> dict[str, Json]:
        """Return the settings as they were typed, by name; None or an empty list where they were not."""
        settings = {row.name: _given_value(row, ctx.params["option_" + row.name]) for row in self.declared.settings}
        if self.declared.command_help:
            settings["command"] = list(ctx.params["argument_command"])
        return settings

    def get_help(self, ctx: click.Context) -> str:
        """Write the help text: the common options, or with --help-all every option.

        It has rich-click's look where that is installed and a person looks.
        """
        panels = self.panels(shows_all=HELP_ALL in ctx.meta)
        return rich_help(self, ctx, panels) or super().get_help(ctx)

    def panels(self, shows_all: bool) -> dict[str, list[click.Option]]:
        """Return the options to show by panel, in brief unless all are shown."""
        declared = self.declared
        rows = declared.rows if shows_all else declared.common_rows
        panels: dict[str, list[click.Option]] = {panel: [] for panel in (*PANELS, OPTIONS)}
        is_brief = len(rows) < len(declared.rows)
        for row in rows:
            panels[row.panel].append(RowOption(row, brief=is_brief))
        of_help = click.Option(HELP, is_flag=True, help=HELP_OF_HELP)
        panels[OPTIONS].append(of_help)
        if is_brief:
            of_all = click.Option([HELP_ALL], is_flag=True, help=f"print all {len(declared.rows)} options")
            panels[OPTIONS].append(of_all)
        return {panel: options for panel, options in panels.items() if options}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, then options by panel, in columns that all panels share."""
        sections = {"Arguments": [(argument.metavar, argument.help) for argument in self.arguments]}
        for panel, options in self.panels(shows_all=HELP_ALL in ctx.meta).items():
            records = [option.get_help_record(ctx) for option in options]
            sections[panel] = [record for record in records if record is not None]
        widths = [len(names) for records in sections.values() for names, _ in records]
        width = max((width for width in widths if width <= WIDEST), default=0)
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl([(names.ljust(width), text) for names, text in lines], col_max=WIDEST)


def _runs_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """List the runs of this directory's settings that begin so, the newest first; where there is none, files."""
    from click.shell_completion import CompletionItem  # imported late, as the next: only a shell asks

    from .chosen_run import list_runs, runs_directory

    try:
        runs = list_runs(runs_directory(None))
    except (AllranksError, OSError):
        runs = []
    names = [run.name for run in reversed(runs) if run.name.startswith(incomplete)]
    return list(map(CompletionItem, names)) or param.type.shell_complete(ctx, param, incomplete)


class AllVerbs(click.Group):
    """All verbs, as a shell's completion walks through them; `load` makes the command of the one that is typed."""

    def __init__(self, verbs: Mapping[str, str], load: Callable[[str], click.Command]) -> None:
        super().__init__("allranks")
        self._verbs = {**verbs, HELP_VERB: "options of a verb"}
        self._load = load

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the command of a verb; verbs follow `help`, too."""
        if cmd_name == HELP_VERB:
            return self
        return self._load(cmd_name) if cmd_name in self._verbs else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs with their help, without loading one."""
        from click.shell_completion import CompletionItem  # imported late: only a shell asks

        return [CompletionItem(name, help=text) for name, text in self._verbs.items() if name.startswith(incomplete)]


def example_text(words: str) -> str:
    """Write an example for a help text. A long one goes on behind a backslash, so that it can be pasted."""
    lines = textwrap.wrap(f"Example: allranks {words}", EXAMPLE_WIDTH, break_on_hyphens=False, break_long_words=False)
    return "\b\n" + " \\\n    ".join(lines)


def _help_all(hidden: bool) -> click.Option:
    """Make the option that prints every option and ends there, as --help does; `hidden`: --help has them all."""

    def show(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
        if is_asked and not ctx.resilient_parsing:
            ctx.meta[HELP_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option([HELP_ALL], is_flag=True, is_eager=True, expose_value=False, callback=show, hidden=hidden)


def _given_value(row: SettingRow, value: Json) -> Json:
    if row.parser.is_flag:
        return not row.default if value else None
    return list(value) if isinstance(value, tuple) else value


def _own_value(row: SettingRow, value: Json) -> Json:
    if row.parser.is_flag:
        return bool(value)
    if value is None:
        return None if SETTINGS.get(row.name) is row else row.default
    return row.read(value, row.option)


class DeclaredGroup(click.Group):
    """Commands below one name, such as `render slurm`."""

    def __init__(self, declared: DeclaredVerbs) -> None:
        self.verbs = declared
        super().__init__(
            declared.name,
            commands=[DeclaredCommand(one) for one in declared.commands],
            help=f"{declared.help}\n\n{example_text(declared.example)}",
            context_settings=CONTEXT,
        )

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return the option that prints the help, in the words of all commands."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = HELP_OF_HELP
        return option

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its whole first sentence."""
        with formatter.section("Commands"):
            formatter.write_dl([(one.name, one.help) for one in self.verbs.commands])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; UsageError names those that there are."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            names = join_words(list(self.commands))
            meant = suggestion(args[0], self.commands)
            raise UsageError(
                f"{self.name} {args[0]}: unknown command. Expected one of {names}\n"
                f"hint: allranks {self.name} {meant or '--help'}"
            )
        return super().resolve_command(ctx, args)


def rich_help(command: click.Command, ctx: click.Context, panels: Mapping[str, Sequence[click.Option]]) -> str:
    """Draw the help as rich-click does; empty where rich-click is missing or no person looks."""
    if not (sys.stdout.isatty() or shows_colour(sys.stdout)) or find_spec("rich_click") is None:
        return ""
    import rich_click  # imported late: it takes 150 ms, and only help needs it

    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    options = [option for panel in panels.values() for option in panel]
    drawn = rich_click.RichCommand(
        name=command.name,
        params=[*arguments, *options],
        help=command.help,
        context_settings=command.context_settings,
        add_help_option=False,  # it is one of the options
        panels=[
            rich_click.RichOptionPanel(name, options=[option.opts[0] for option in options])
            for name, options in panels.items()
            if name != OPTIONS  # rich-click's own panel of that name takes the rest
        ],
    )
    drawn_ctx = rich_click.RichContext(drawn, info_name=ctx.info_name, parent=ctx.parent)
    return drawn.get_help(drawn_ctx)


MODULE = "-m"
ROLE = "role"  # the setting whose option takes two words


@dataclass
class CommandLine:
    """A command line in its parts: our words, each option with the word that is its value, the training command."""

    words: list[str] = field(default_factory=list)
    values: list[tuple[str, str, SettingRow | None]] = field(default_factory=list)  # option as typed, value, row or =
    command: list[str] = field(default_factory=list)


def split(words: Sequence[str], rows: Iterable[SettingRow], takes_command: bool) -> CommandLine:
    """Divide a command line. Judges nothing: see `refuse_empty_values`."""
    by_name = {name: row for row in rows for name in row.names}
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
        if name in switches and not equals:
            line.words.append(f"{switches[name].option}={switches[name].value_of(name)}")
            continue
        line.words.append(name + equals + value)
        row = by_name.get(name)
        if equals:
            line.values.append((f"{name}=", value, None))
        elif row is not None and not row.parser.is_flag and at < len(words):
            line.values.append((name, words[at], row))
            line.words.append(words[at])
            at += 1
            if row.name == ROLE and " " not in line.words[-1] and at < len(words):
                line.words[-1] += f" {words[at]}"  # NAME:NODES and the command are two words
                at += 1
    return line


def refuse_empty_values(line: CommandLine) -> None:
    """Refuse what `--option $VARIABLE` becomes where the variable is empty: the next word is taken for the value."""
    for name, value, row in line.values:
        if not value:
            raise UsageError(f"{name} has an empty value. A shell variable was probably empty")
        if row is None:
            continue
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
