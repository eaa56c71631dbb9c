"""What allranks' verbs use of typer, on argparse: stands in for it in `allranks.pyz`, where nothing is installed.

typer needs pydantic, which is compiled, so it cannot travel. The verbs' own signatures make the parser, so there
is one definition of every option. Help and messages are plainer than typer's; values and exit codes are the same.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, NoReturn


class Parameter:
    """An option or argument of a verb."""

    def __init__(self, *names: str, help: str = "", metavar: str | None = None, **_: Any) -> None:
        self.names, self.help, self.metavar = names, help, metavar
        self.is_option = bool(names)


Option = Argument = Parameter


class Exit(Exception):
    """Ends a verb with a code."""

    def __init__(self, code: int = 0) -> None:
        super().__init__(code)
        self.exit_code = code


class Abort(Exception):
    """Somebody said no."""


class BadOption(Exception):
    """A wrong option."""

    def format_message(self) -> str:
        """The text, as typer's own error has it."""
        return str(self)


class Parser(argparse.ArgumentParser):
    """Raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise BadOption(message)


def echo(message: object = "", err: bool = False) -> None:
    """Prints a line."""
    print(message, file=sys.stderr if err else sys.stdout)


def confirm(text: str, default: bool = False, **_: Any) -> bool:
    """Asks; without an answer the default."""
    answer = input(f"{text} [{'Y/n' if default else 'y/N'}]: ").strip().lower()
    return default if not answer else answer in ("y", "yes")


class Typer:
    """Holds the one verb that is run."""

    def __init__(self, **_: Any) -> None:
        self.function: Callable[..., Any] | None = None

    def command(self, name: str | None = None, **_: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Takes the verb."""

        def take(function: Callable[..., Any]) -> Callable[..., Any]:
            self.function = function
            return function

        return take


class Command:
    """A verb with its parser."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._hints = typing.get_type_hints(function, include_extras=True)

    def main(self, args: Sequence[str], prog_name: str, standalone_mode: bool = True) -> Any:
        """Parses and runs; gives the exit code."""
        words = list(args)
        at = words.index("--") if "--" in words else len(words)
        parser, rest = Parser(prog=prog_name, description=inspect.getdoc(self._function), allow_abbrev=False), ""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        for name, parameter in inspect.signature(self._function).parameters.items():
            hint, declared = _parts(self._hints[name])
            if not declared.is_option and _is_list(hint):
                rest = name
            else:
                _add(parser, name, hint, declared, parameter.default)
        given = vars(parser.parse_args(words[:at]))
        if rest:
            given[rest] = words[at + 1 :] or None
        try:
            return self._function(**given)
        except Exit as error:
            return error.exit_code


def _parts(hint: Any) -> tuple[Any, Parameter]:
    """Annotated[type, parameter] in its parts."""
    if typing.get_origin(hint) is typing.Union:  # Python 3.10 wraps what has None as its default
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    inner, *extras = typing.get_args(hint)
    return inner, next(e for e in extras if isinstance(e, Parameter))


def _is_list(hint: Any) -> bool:
    return any(typing.get_origin(part) is list for part in (hint, *typing.get_args(hint)))


def _add(parser: Parser, name: str, hint: Any, declared: Parameter, default: Any) -> None:
    kinds = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
    if not declared.is_option:
        nargs = "?" if type(None) in kinds else None
        parser.add_argument(name, nargs=nargs, default=default, help=declared.help.replace("%", "%%"))
        return
    what: dict[str, Any] = {"dest": name, "default": default, "help": declared.help.replace("%", "%%")}
    if bool in kinds:
        parser.add_argument(*declared.names, action="store_true", **what)
    elif _is_list(hint):
        parser.add_argument(*declared.names, action="append", metavar=declared.metavar, **what)
    else:
        kind = int if int in kinds else float if float in kinds else str
        parser.add_argument(*declared.names, type=kind, metavar=declared.metavar, **what)


class main:
    """typer.main, of which one function is used."""

    @staticmethod
    def get_command(app: Typer) -> Command:
        """The verb as a command."""
        assert app.function is not None
        return Command(app.function)
