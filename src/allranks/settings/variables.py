"""The variables of the ranks: `--env K=V`, `--env NAME`, the table `[env]` and the list `forward`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Variables:
    """What is set in the ranks, what is copied from the caller's environment, and remarks."""

    env: dict[str, str] = field(default_factory=dict)
    forward: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_variables(items: Json, config: Mapping[str, Json], environ: Mapping[str, str], source: str) -> Variables:
    """Options over TOML; of two options with the same name the last one holds."""
    assigned, copied = _from_options(items, environ)
    table = _table(config.get("env"), source)
    listed, missing = _listed(config.get("forward"), environ, source)
    notes = tuple(f"forward: {name} is not set in the environment, so it is not forwarded" for name in missing)
    env = {**{k: v for k, v in table.items() if k not in copied}, **assigned}
    forward = tuple(dict.fromkeys(copied + [name for name in listed if name not in env]))
    return Variables(env, forward, notes)


def check_name(name: str, where: str, error: type[UsageError]) -> str:
    """Return `name` if a user may set it in the ranks."""
    if not ENV_NAME.fullmatch(name):
        raise error(f"{where}: {show(name)} is not the name of a variable. Letters, digits and '_', not a digit first")
    if name in RESERVED:
        raise error(f"{where}: {name} differs between ranks or nodes and is set by allranks{RESERVED[name]}")
    return name


def _from_options(items: Json, environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    assigned: dict[str, str] = {}
    copied: list[str] = []
    for item in _strings(items or (), "--env", UsageError):
        name, equals, value = item.partition("=")
        check_name(name, "--env", UsageError)
        if not equals and name not in environ:
            raise UsageError(f"--env {name}: {name} is not set in the environment. Set it, or write --env {name}=VALUE")
        assigned.pop(name, None)
        copied = [other for other in copied if other != name]
        if equals:
            assigned[name] = value
        else:
            copied.append(name)
    return assigned, copied


def _table(table: Json, source: str) -> dict[str, str]:
    """`[env]`; numbers are taken as text."""
    if table is None:
        return {}
    return read_table(table, f"{source}: [env]", ConfigError)


def read_table(table: Json, where: str, error: type[UsageError]) -> dict[str, str]:
    """Read a table of variables that a user may set in the ranks; raise `error`, which shows no value."""
    try:
        variables = VARIABLES_TABLE.read(table)
    except ValueError as why:
        raise error(f"{where}: set {why}") from None
    assert isinstance(variables, dict)
    return {check_name(name, where, error): value for name, value in variables.items()}


def _listed(names: Json, environ: Mapping[str, str], source: str) -> tuple[list[str], list[str]]:
    """`forward`, parted into those the caller's environment has and those it has not."""
    where = f"{source}: forward"
    checked = [check_name(name, where, ConfigError) for name in _strings(names or (), where, ConfigError)]
    return [n for n in checked if n in environ], [n for n in checked if n not in environ]


def _strings(value: Json, where: str, error: type[UsageError]) -> tuple[str, ...]:
    try:
        names = NAMES.read(value)
    except ValueError as why:
        raise error(f"{where}: set {why}") from None
    assert isinstance(names, tuple)
    return names
