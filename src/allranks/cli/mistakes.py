"""What a wrong verb or option is answered with: what was probably meant, as a command or an option to paste (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from allranks.settings.table import suggestion
from allranks.text import join_words

from .commands import COMMANDS
from .declare import HELP, HELP_ALL, Declared, DeclaredVerbs

MOST_NAMED = 6  # commands that have an option


def all_declared() -> list[Declared]:
    """Return every command, with those below a name."""
    declared: list[Declared] = []
    for command in COMMANDS.values():
        if isinstance(command, DeclaredVerbs):
            declared += command.commands
        else:
            declared.append(command)
    return declared


def unknown_verb(word: str, others: Iterable[str], verbs: Iterable[str]) -> str:
    """Word the refusal of a command line whose first word is not a verb; `others` are the words behind it."""
    names = list(verbs)
    if word.startswith("-"):
        verb = next((other for other in others if other in names), "VERB")
        return f"{word} stands in front of the verb. Options stand behind it\nhint: allranks {verb} {word}"
    if word.endswith(".py") or word == "torchrun":
        return f"{word} is not a verb\nhint: allranks run {word} …"
    meant = suggestion(word, [*names, "help"])
    if meant:
        return f"{word}: unknown verb\nhint: {shlex.join(['allranks', meant, *others])}"
    return f"{word}: unknown verb. Expected one of {join_words(names)}\nhint: allranks --help"


def unknown_option(name: str, path: str, declared: Declared | None) -> str:
    """Word the refusal of an option. `path` is the command as it is typed, such as `allranks render slurm`."""
    by_name = {}
    if declared is not None:
        by_name = {option: row for row in declared.rows for option in row.names}
    owners = [one for one in all_declared() if any(name in row.names for row in one.rows)]
    verbs = [f"`{one.verb} {one.name}`" if one.verb else f"`{one.name}`" for one in owners]
    # Dashes, which all have, do not make two names alike. An option of other verbs is hardly a slip: ps --on.
    bare = {option.lstrip("-"): option for option in [*by_name, *HELP, HELP_ALL] if option.startswith("--")}
    meant = bare.get(suggestion(name.lstrip("-"), bare, least=0.7 if verbs else 0.6), "")
    if meant:
        row = by_name.get(meant)
        value = "" if row is None or row.parser.is_flag else f" {row.shown_metavar}"
        return f"{name} is not an option of `{path}`\nhint: {meant}{value}"
    if verbs:
        return f"{name} is not an option of `{path}`, but of {join_words(verbs, limit=MOST_NAMED)}"
    if declared is not None and declared.command_help:
        return (
            f"{name} is not an option of `{path}`. Options of a program stand behind it\n"
            f"hint: {path} --help-all lists the options"
        )
    return f"{name} is not an option of `{path}`\nhint: {path} --help"
