"""The variables of the ranks: `--env K=V`, `--env NAME`, the table `[env]` and the list `forward`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..cluster.names import show
from ..errors import ConfigError, UsageError
from ..protocol.jsontext import Json
from .parsers import ENV_NAME, VARIABLES_TABLE, WORD, several

NAMES = several(WORD, "a list of names")
RESERVED = {
    "RANK": "",
    "LOCAL_RANK": "",
    "GROUP_RANK": "",
    "ROLE_RANK": "",
    "NODE_RANK": "",
    "WORLD_SIZE": "",
    "LOCAL_WORLD_SIZE": "",
    "GROUP_WORLD_SIZE": "",
    "ROLE_WORLD_SIZE": "",
    "MASTER_ADDR": ". Set --master-addr",
    "MASTER_PORT": ". Set --master-port",
}

# Say who the nodes and ranks are: before a command they are settings of the run, in no rank's own environment.
OF_THE_RUN = frozenset({*RESERVED, "NNODES", "NPROC_PER_NODE"})


def read_variables(
    options: Mapping[str, Json], table: Mapping[str, str], listed: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str], list[str]]:
    """Return what is set in the ranks, what is copied from the caller's environment, and remarks.

    Options are over the `table` of a file and the names `listed` in one. Of two options with the same name the last
    one holds.
    """
    assigned, copied = _from_options(options, environ)
    missing = [name for name in listed if name not in environ]
    notes = [f"forward: {name} is not set in the environment, so it is not forwarded" for name in missing]
    env = {**{k: v for k, v in table.items() if k not in copied}, **assigned}
    forward = [*copied, *(name for name in listed if name in environ and name not in env)]
    return env, list(dict.fromkeys(forward)), notes


def check_name(name: str, where: str) -> str:
    """Return `name` if a user may set it in the ranks; raise ConfigError."""
    if not ENV_NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: {show(name)} is not the name of a variable. Letters, digits and '_', not a digit first"
        )
    if name in RESERVED:
        raise ConfigError(f"{where}: {name} differs between ranks or nodes and is set by allranks{RESERVED[name]}")
    return name


def _from_options(options: Mapping[str, Json], environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    assigned: dict[str, str] = {}
    copied: list[str] = []
    given = [options[key] for key in ("env", "forward") if options.get(key) is not None]
    for item in (word for words in given for word in _names(words, "--env")):
        name, equals, value = item.partition("=")
        check_name(name, "--env")
        if not equals and name not in environ:
            raise UsageError(f"--env {name}: {name} is not set in the environment. Set it, or write --env {name}=VALUE")
        assigned.pop(name, None)
        copied = [other for other in copied if other != name]
        if equals:
            assigned[name] = value
        else:
            copied.append(name)
    return assigned, copied


def read_table(table: Json, where: str) -> dict[str, str]:
    """Read a table of variables that a user may set in the ranks; raise ConfigError, which shows no value."""
    try:
        variables = VARIABLES_TABLE.read(table)
    except ValueError as why:
        raise ConfigError(f"{where}: set {why}") from None
    assert isinstance(variables, dict)
    return {check_name(name, where): value for name, value in variables.items()}


def read_names(names: Json, where: str) -> tuple[str, ...]:
    """Read a list of variables that a user may set in the ranks; raise ConfigError."""
    return tuple(check_name(name, where) for name in _names(names, where))


def _names(value: Json, where: str) -> tuple[str, ...]:
    try:
        names = NAMES.read(value)
    except ValueError as why:
        raise ConfigError(f"{where}: found {show(value)}, set {why}") from None
    assert isinstance(names, tuple)
    return names
