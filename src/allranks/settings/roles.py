"""Roles: several programs in one run, each with its own command, nodes and world (pure).

A table `[roles.NAME]`, or `--role NAME:NODES 'command'`, becomes a Role. `spec_of` gives the settings of one role: its
nodes are launched by them as those of a plain run are. A plain run has one role, without a name.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..cluster.names import show
from ..errors import ConfigError, UsageError
from ..protocol.command_words import read_command
from ..protocol.jsontext import Json
from ..text import count_of, join_words
from .config_template import toml_value
from .runspec import Role, RunSpec
from .secrets import is_secret_name
from .setting import SettingRow
from .table import suggestion
from .tools import choose_launcher, read_tool
from .variables import check_name
from .wrappers import peel, refuse_unknown_words

MOST_ROLES = 64
TAKEN = ("default", "attempt", "output_dir", "run")  # names that mean something else in a placeholder or a variable
ATTRIBUTES = ("address", "addresses", "hosts", "port")
_REFERENCE = re.compile(r"(?<![{$\\])\{([a-z][a-z0-9_-]{0,40})\.([a-z]{1,20})(?:\.([a-z][a-z0-9_]{0,31}))?\}(?!\})")

ROLE_KEYS: dict[str, SettingRow] = {
    field.name.rstrip("_").replace("_", "-"): dataclasses.replace(field.metadata["row"], name=field.name)
    for field in dataclasses.fields(Role)
    if "row" in field.metadata
}


# -- reading ---------------------------------------------------------------------------------------------------


def read_tables(tables: Json, kind: str, example: str, source: str) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """Yield the tables [kind.NAME] of a file with their names, in their order; raise ConfigError for anything else."""
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{source}: {kind} is {show(tables)}, expected tables such as [{kind}.{example}]")
    for name, keys in tables.items():
        if not isinstance(keys, Mapping):
            raise ConfigError(f"{source}: {kind}.{name} is {show(keys)}, expected a table [{kind}.{name}]")
        yield str(name), keys


def read_roles(tables: Json, source: str) -> tuple[Role, ...]:
    """Read the tables [roles.NAME] of a file, in their order; raise ConfigError."""
    roles = []
    for name, keys in read_tables(tables, "roles", "trainer", source):
        where = f"{source}: [roles.{name}]"
        roles.append(_read_role(_checked_name(name, where), keys, where))
    return tuple(roles)


def read_role_lines(lines: Sequence[str]) -> tuple[Role, ...]:
    """Read what --role has, in its order: each role starts after those before it."""
    roles: list[Role] = []
    for line in lines:
        head, command = line.split(None, 1)
        name, _, nodes = head.partition(":")
        keys: dict[str, Json] = {"command": command, "nodes": nodes, "after": [role.name for role in roles]}
        where = f"--role {name}"
        if any(role.name == name for role in roles):
            raise UsageError(f"{where} is given twice")
        roles.append(_read_role(_checked_name(name, where), keys, where))
    return tuple(roles)


def _checked_name(name: str, where: str) -> str:
    if name in TAKEN:
        raise ConfigError(f"{where}: a role cannot be called {name}. Choose another name")
    return str(ROLE_KEYS["with"].read(name, where))


def _read_role(name: str, keys: Mapping[str, Json], where: str) -> Role:
    values: dict[str, Json] = {"name": name}
    for key, value in keys.items():
        spelt = str(key).replace("_", "-")
        row = ROLE_KEYS.get(spelt)
        if row is None:
            meant = suggestion(spelt, ROLE_KEYS)
            known = f"Did you mean {meant}?" if meant else f"Its keys are {join_words(list(ROLE_KEYS))}"
            raise ConfigError(f"{where}: {show(key)} is not a key of a role. {known}")
        values[row.name] = row.read(value, f"{where} {spelt}")
    make: Callable[..., Role] = Role
    role = make(**values)
    for variable in role.env:
        check_name(variable, f"{where} env")
    if not role.command:
        raise ConfigError(f"{where}: command is missing")
    return role


# -- judging ---------------------------------------------------------------------------------------------------


def settled(roles: Sequence[Role], source: str) -> tuple[Role, ...]:
    """Fill what the roles leave to each other, and refuse what cannot be: raise ConfigError."""
    names = [role.name for role in roles]
    if len(roles) > MOST_ROLES:
        raise ConfigError(f"{source}: {count_of(len(roles), 'role')}, at most {MOST_ROLES}")
    waited_for = {name for role in roles for name in role.after}
    for role in roles:
        where = f"{source}: [roles.{role.name}]"
        for name in (*role.after, *filter(None, [role.with_])):
            if name == role.name or name not in names:
                raise ConfigError(f"{where}: {_unknown(name, names, role.name)}")
        _refuse_sharing(role, roles, where)
        _refuse_references(role, names, where)
    _refuse_circle(roles, source)
    settled_roles = []
    for role in roles:
        ends = role.ends or ("never" if role.name in waited_for else "run")
        hang = ends == "run" if role.hang is None else role.hang
        settled_roles.append(_with_launcher(dataclasses.replace(role, ends=ends, hang=hang)))
    if all(role.ends != "run" for role in settled_roles):
        raise ConfigError(f'{source}: the success of no role ends the run\nhint: ends = "run" for the trainer')
    left_open = [role.name for role in roles if role.nodes is None and not role.with_]
    if len(left_open) > 1:
        raise ConfigError(
            f"{source}: {join_words(left_open)} have no number of nodes, and one role alone takes the rest"
        )
    return tuple(settled_roles)


def _unknown(name: str, names: Sequence[str], own: str) -> str:
    if name == own:
        return f"{name} is the role itself"
    meant = suggestion(name, [other for other in names if other != own])
    return f"{name} is not a role. " + (f"Did you mean {meant}?" if meant else f"Roles are {join_words(names)}")


def _refuse_sharing(role: Role, roles: Sequence[Role], where: str) -> None:
    """Refuse two roles on one GPU, and a role on the nodes of one that has none of its own."""
    if not role.with_:
        return
    if role.nodes is not None:
        raise ConfigError(f"{where}: nodes and with are both set. Keep one of them")
    host = next(other for other in roles if other.name == role.with_)
    if host.with_:
        raise ConfigError(f'{where}: {host.name} shares the nodes of {host.with_}\nhint: with = "{host.with_}"')
    beside = [other for other in roles if other.name != role.name and host.name in (other.name, other.with_)]
    for other in beside:
        both = set(_gpus(role)) & set(_gpus(other))
        if both:
            raise ConfigError(f"{where}: {role.name} and {other.name} share nodes, and both have GPU {min(both)}")
        for one in (role, other):
            if not one.gpus:
                raise ConfigError(
                    f"{where}: {role.name} and {other.name} share nodes, so each names its GPUs. {one.name} does not\n"
                    f'hint: gpus = "0-3" in [roles.{one.name}], or gpus = "none"'
                )


def _gpus(role: Role) -> list[str]:
    return [] if role.gpus in ("", "none") else role.gpus.split(",")


def _refuse_circle(roles: Sequence[Role], source: str) -> None:
    """Refuse roles of which each starts only after another one of them."""
    after = {role.name: role.after for role in roles}
    stuck = dict(after)
    while free := [name for name, before in stuck.items() if not set(before) & set(stuck)]:
        for name in free:
            del stuck[name]
    if not stuck:
        return
    path = [next(iter(stuck))]
    while path[-1] not in path[:-1]:
        path.append(next(name for name in after[path[-1]] if name in stuck))
    circle = path[path.index(path[-1]) :]
    raise ConfigError(f"{source}: roles wait for each other, {' after '.join(circle)}")


def _texts(role: Role) -> list[str]:
    return [*role.command, *role.env.values(), role.ready]


def _refuse_references(role: Role, names: Sequence[str], where: str) -> None:
    """Refuse a placeholder of a role that does not exist, or of nothing that a role has."""
    for text in _texts(role):
        for match in _REFERENCE.finditer(text):
            name, attribute, port = match.groups()
            is_attribute = attribute in ATTRIBUTES and (attribute == "port") == (port is not None)
            if name not in names and (is_attribute or suggestion(name, names)):
                raise ConfigError(f"{where} has {match[0]}: {_unknown(name, names, '')}")
            if name in names and not is_attribute:
                known = ", ".join(f"{{{name}.{word}}}" for word in (*ATTRIBUTES[:-1], "port.NAME"))
                raise ConfigError(f"{where} has {match[0]}, which is unknown: {known}")


def _with_launcher(role: Role) -> Role:
    """Choose what starts the ranks, as for a plain run. Other programs than training start once a node."""
    peeled = peel(list(role.command), by_itself=bool(role.launcher) or role.ends == "never")
    command = peeled.command
    is_python = read_command(command).kind in ("python-script", "python-module")
    once = peeled.once or role.ends == "never" or not (read_tool(command) or is_python)
    asked = role.launcher or ("command" if once else None)
    if asked is None:
        refuse_unknown_words(command)
    launcher, _ = choose_launcher(command, asked)
    wrap = peeled.wrap_for(launcher, None)
    env = {**peeled.env, **role.env}
    return dataclasses.replace(role, command=command, launcher=launcher, wrap=wrap, env=env)


def refuse_sharing(spec: RunSpec, place: str) -> None:
    """Raise UsageError for a role on the nodes of another one where `place` has one role alone."""
    sharing = next((role for role in spec.launch.roles if role.with_), None)
    if sharing is None:
        return
    hint = "--hosts or --slurm" if spec.launch.ray else "give each role nodes of its own"
    raise UsageError(f"{sharing.name} shares the nodes of {sharing.with_}, and {place} has one role\nhint: {hint}")


# -- writing ---------------------------------------------------------------------------------------------------


def as_toml(roles: Iterable[Role]) -> str:
    """Write settled roles as the tables that `read_roles` reads again.

    Raise UsageError for a variable with a secret's name: the text may lie in a file that others read.
    """
    unset = Role()
    blocks = []
    for role in roles:
        secret = next(filter(is_secret_name, role.env), None)
        if secret is not None:
            raise UsageError(
                f"[roles.{role.name}] env has {secret}, and a secret is not written into a file\n"
                f"hint: leave it out there, and forward it to all roles: --env {secret}"
            )
        # What stood before the command goes back there, where it chooses the launcher again.
        whole = dataclasses.replace(role, command=(*shlex.split(role.wrap), *role.command))
        lines = [f"[roles.{role.name}]"]
        for key, row in ROLE_KEYS.items():
            value = getattr(whole, row.name)
            if value != getattr(unset, row.name) and not (key == "launcher" and role.wrap):
                lines.append(f"{key} = {toml_value(value)}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


# -- using -----------------------------------------------------------------------------------------------------


def roles_of(spec: RunSpec) -> tuple[Role, ...]:
    """Give the roles of a run: those that were named, else the one that the run itself is."""
    launch = spec.launch
    plain = Role(command=launch.command, launcher=launch.launcher, ends="run", hang=True)
    return launch.roles or (plain,)


def main_role(spec: RunSpec) -> Role:
    """Give the first role whose success ends the run."""
    return next(role for role in roles_of(spec) if role.ends == "run")


def main_spec(spec: RunSpec) -> RunSpec:
    """Give the settings of the main role; those of a plain run are the run's own."""
    return spec_of(spec, main_role(spec))


def spec_of(spec: RunSpec, role: Role) -> RunSpec:
    """Give the settings by which the nodes of one role are launched."""
    if role.is_plain:
        return spec
    env = {**spec.launch.env, **role.env}
    if role.gpus:
        env["CUDA_VISIBLE_DEVICES"] = "" if role.gpus == "none" else role.gpus
    nproc = role.nproc or spec.launch.nproc
    if nproc is None and role.gpus:
        nproc = max(1, len(_gpus(role)))
    return spec.changed(
        roles=(),
        command=role.command,
        launcher=role.launcher,
        nproc=nproc,
        env=env,
        prelude=role.prelude or spec.launch.prelude,
        wrap=" ".join(filter(None, (spec.launch.wrap, role.wrap))) or None,
        retries=role.retries if role.on_failure == "restart" else 0,
        hang_timeout=spec.limits.hang_timeout if role.hang else 0.0,
    )


def deal(roles: Sequence[Role], count: int, source: str) -> dict[str, list[int]]:
    """Deal `count` nodes to the roles: the places of each, in its order. Raise UsageError where there are too few."""
    own = [role for role in roles if not role.with_]
    asked = sum(role.nodes or 0 for role in own)
    rest = [role for role in own if role.nodes is None]
    if asked + len(rest) > count:
        words = [f"{role.name} {role.nodes or 1}" for role in own]
        needed = count_of(asked + len(rest), "node")
        raise UsageError(f"the roles need {needed} ({', '.join(words)}), and {source} has {count}")
    places: dict[str, list[int]] = {}
    first = 0
    for role in own:
        number = role.nodes if role.nodes is not None else count - asked
        places[role.name] = list(range(first, first + number))
        first += number
    return {role.name: places[role.with_ or role.name][: role.nodes] for role in roles}


def node_count(spec: RunSpec) -> int:
    """Return how many nodes a run has: as asked for, else one, or the sum of its roles.

    Raise UsageError where a role takes what is left.
    """
    roles = spec.launch.roles
    asked = spec.target.nodes
    if not roles:
        return asked or 1
    own = [role for role in roles if not role.with_]
    rest = next((role.name for role in own if role.nodes is None), None)
    if asked is None and rest is not None:
        raise UsageError(f"{rest} takes the nodes that are left, and their number is not known\nhint: --nodes N")
    count = asked or sum(role.nodes or 0 for role in own)
    deal(roles, count, "--nodes")
    return count


def ports_of(roles: Iterable[Role], name: str) -> tuple[str, ...]:
    """Name the ports of a role that a placeholder asks for, in the order of their names."""
    found = {
        match[3]
        for role in roles
        for text in _texts(role)
        for match in _REFERENCE.finditer(text)
        if match[1] == name and match[2] == "port"
    }
    return tuple(sorted(found))


def fill_roles(text: str, values: Mapping[str, str]) -> str:
    """Put the values of roles, by placeholder without its braces, into a text; what has none stays.

    >>> fill_roles("--host {rollout.address} {a.b}", {"rollout.address": "10.0.0.1"})
    '--host 10.0.0.1 {a.b}'
    """
    return _REFERENCE.sub(lambda match: values.get(match[0][1:-1], match[0]), text)


def variable_of(placeholder: str) -> str:
    """Name the variable that has the value of a placeholder.

    >>> variable_of("rollout.port.http")
    'ALLRANKS_ROLLOUT_PORT_HTTP'
    """
    return "ALLRANKS_" + re.sub(r"[.-]", "_", placeholder).upper()
