"""Options, environment and settings files into one RunSpec.

An option overrides the environment, that allranks.toml, that the user's own file, and that the default. The settings of
a cluster, `[cluster.NAME]` in the user's own file, come right behind the place that names it: those of `--cluster lab`
override the environment and all files.

A settings file has top-level keys named as the long options, with `-` or `_`, the table `[env]` and the list `forward`.
In `resolve`'s options a key is a RunSpec field, None or an empty list means not given, and `env` is the list of `--env`
arguments.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..cluster.names import show
from ..errors import ConfigError, UsageError
from ..protocol.jsontext import Json
from ..text import join_words
from .frameworks import Peeled
from .ray import ray_roles
from .roles import read_role_lines, read_roles, read_tables, settled
from .runspec import Role, RunSpec
from .table import OPTION_ONLY, SETTINGS, TARGETS, VARIABLES, option_name, suggestion
from .tools import choose_launcher, is_one_process, node_rank_in, read_tool
from .variables import OF_THE_RUN, RESERVED, read_names, read_table, read_variables
from .wrappers import peel, refuse_unknown_words

ROLES = "roles"  # tables of the project's file, or of the file that --roles names
TABLES = ("env", "forward", ROLES)
NOTIFY = "notify"  # a setting, and the table of the user's own file that has the addresses of what it names
CLUSTER = "cluster"  # a setting, and the table of the user's own file that defines what it names
# Keys that people write after the option of another name.
_ALIASES = {
    option.lstrip("-"): row.name
    for row in SETTINGS.values()
    for option in row.names
    if row.in_file and option.startswith("--") and not row.parser.is_flag
}
# Options that hardly any training program has.
_OURS_ALONE = ("--hang-timeout", "--hosts", "--k8s", "--nproc", "--nproc-per-node", "--sky", "--slurm", "--sync")
_NAME_NODES = ("--hosts", "--k8s", "--sky", "--slurm")
NOT_WITH_ROLES = ("audit_data", "launcher", "master_port", "min_nodes", "retries", "spares", "sync", "test")


class Layer(enum.IntEnum):
    """Sources of settings, the strongest first. Each that can name a cluster is followed by that cluster."""

    OPTION = 0
    CLUSTER_OF_OPTION = 1
    ENVIRONMENT = 2
    CLUSTER_OF_ENVIRONMENT = 3
    PROJECT = 4
    CLUSTER_OF_PROJECT = 5
    USER = 6


@dataclass(frozen=True)
class Resolved:
    """The spec, remarks, and WORLD_SIZE for the plan to compare.

    `taken` are options of the command whose values are from variables that other tools have too.
    """

    spec: RunSpec
    notes: tuple[str, ...] = ()
    expected_world_size: int | None = None
    taken: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Given:
    """One value of one source; `where` is for errors; lower layer wins."""

    value: Json
    where: str
    layer: Layer


def resolve(
    options: Mapping[str, Json],
    environ: Mapping[str, str],
    config: Mapping[str, Json],
    *,
    config_source: str,
    user_config: Mapping[str, Json] | None = None,
    user_source: str = "",
) -> Resolved:
    """One RunSpec out of all layers; UsageError or ConfigError names the source and what to set."""
    user_keys = dict(user_config or {})
    clusters = _clusters(user_keys.pop(CLUSTER, None), user_source)
    if isinstance(user_keys.get(NOTIFY), Mapping):
        del user_keys[NOTIFY]  # cli/outlets.py reads it, where a run asks for an entry
    files = [
        *_of_file(_config_keys(config, config_source), config_source, Layer.PROJECT),
        *_of_file(_config_keys(user_keys, user_source), user_source, Layer.USER),
    ]
    items = [*_options(options), *_environment(environ), *_settings_in(files)]
    cluster = list(_named_cluster(items, clusters, user_source))
    items += _settings_in(cluster)
    peeled = _peeled(items)
    items += _pasted(peeled.command)
    environ = {**environ, **peeled.env}
    items = [*_environment(peeled.env), *items]
    chosen = _targets(_collect(items))
    values = {field: _merge(field, candidates) for field, candidates in chosen.items()}
    if "pg_timeout" in chosen:
        values["pg_timeout_forced"] = chosen["pg_timeout"][0].layer is Layer.OPTION
    tables = _tables([*files, *cluster])
    table = read_table(tables["env"].value, tables["env"].where) if "env" in tables else {}
    listed = read_names(tables["forward"].value, tables["forward"].where) if "forward" in tables else ()
    env, forward, notes = read_variables(options, table, listed, environ)
    notes += [*peeled.notes, *_remarks(values, environ), *_left_out(peeled.env)]
    if "command" in values:
        values["command"] = peeled.command
    notes += _misplaced(values)
    env.update({name: value for name, value in peeled.env.items() if name not in OF_THE_RUN})
    _refuse_changing_world(values)
    spec = RunSpec.of(**values, env=env, forward=tuple(name for name in forward if name not in env))
    roles = _roles(values, tables.get(ROLES), peeled)
    if roles:
        return Resolved(spec.with_roles(roles).changed(command=()), tuple(notes), _world_size(environ))
    asked = spec.launch.launcher if "launcher" in values else None
    if asked is None and not peeled.once:
        refuse_unknown_words(spec.launch.command)
    launcher, note = choose_launcher(spec.launch.command, "command" if peeled.once else asked)
    notes += [note] if note else []
    if spec.launch.bind != "none" and is_one_process(launcher, spec.launch.command):
        raise UsageError(
            f"--bind {spec.launch.bind} is for ranks that allranks sees, and --launcher command hides them\n"
            "hint: leave it out, and start the program with numactl"
        )
    if peeled.wrap:
        inner = peeled.wrap_for(launcher, spec.launch.python)
        spec = spec.changed(wrap=" ".join(filter(None, (spec.launch.wrap, inner))))
    taken = tuple(_taken({field: chosen[field][0] for field in options if field in chosen}))
    return Resolved(spec.changed(launcher=launcher), tuple(notes), _world_size(environ), taken)


def _roles(values: Mapping[str, Json], tables: _Given | None, peeled: Peeled) -> tuple[Role, ...]:
    """Return the roles of the run: of --role or --ray, else of the tables; none in a plain run."""
    lines = [str(line) for line in _as_tuple(values.get("role"))]
    if values.get("ray"):
        if lines:
            raise UsageError("--ray makes the roles of the run, and --role names others")
        if tables is not None:
            raise UsageError(f"--ray makes the roles of the run, and {tables.where} names others")
        source = "--ray"
        start = [str(option) for option in _as_tuple(values.get("ray_start"))]
        nproc = values.get("nproc")
        watched = "hang_timeout" in values  # a driver may well say nothing for as long as that is by itself
        roles = ray_roles(peeled, start, nproc if isinstance(nproc, int) else None, watched)
    elif values.get("ray_start"):
        raise UsageError("--ray-start is of a run with Ray\nhint: --ray")
    elif lines:
        source = "--role"
        roles = settled(read_role_lines(lines), source)
    elif tables is not None:
        source = str(values.get("roles_file") or tables.where)
        roles = settled(read_roles(tables.value, source), source)
    else:
        return ()
    if values.get("command") and not values.get("ray"):
        raise UsageError(f"{source} names the roles of the run, so a command belongs to one of them. Leave it out")
    for name in NOT_WITH_ROLES:
        if values.get(name):
            raise UsageError(f"{option_name(name)} is of a run with one role. {source} has several")
    return roles


def _refuse_changing_world(values: Mapping[str, Json]) -> None:
    """Raise UsageError for a number of nodes that may change where the engine keeps one number."""
    least = values.get("min_nodes")
    if least is None:
        return
    elsewhere = [name for name in ("slurm", "k8s", "sky", "node_rank") if values.get(name) not in (None, False)]
    if elsewhere:
        where = "join" if elsewhere == ["node_rank"] else option_name(elsewhere[0])
        raise UsageError(
            f"a number of nodes that may change (--nodes MIN:MAX) is for --hosts and --local. With {where} a run has "
            "one number: --nodes N, and --retries N starts again after a failure"
        )
    most = values.get("nodes")
    if isinstance(most, int) and isinstance(least, int) and least > most:
        raise UsageError(f"--min-nodes {least} is more than --nodes {most}. Set --nodes {most}:{least}")


def _pasted(command: Sequence[str]) -> Iterator[tuple[str, _Given]]:
    """Yield what of a pasted `torchrun --nnodes MIN:MAX --numa-binding RULE` becomes the run's."""
    tool = read_tool(command)
    if tool is None or tool.name != "torchrun":
        return
    nodes = tool.value("nnodes") or ""
    least, colon, most = nodes.partition(":")  # torch/distributed/run.py, parse_min_max_nnodes
    if colon and least != most:
        yield "nodes", _Given(nodes, f"torchrun --nnodes {nodes}", Layer.USER)
    rule = tool.value("numa_binding")
    if rule:
        yield "bind", _Given(rule, f"torchrun --numa-binding {rule}", Layer.USER)


def _peeled(items: Sequence[tuple[str, _Given]]) -> Peeled:
    """Take off what stands before the command that the strongest source names."""
    given = _strongest("command", items)
    if given is None:
        return Peeled(())
    names_launcher = any(field == "launcher" for field, _ in items)
    return peel([str(word) for word in _as_tuple(_read("command", given))], by_itself=names_launcher)


def _left_out(env: Mapping[str, str]) -> Iterator[str]:
    for name in env:
        if name in RESERVED and name not in VARIABLES and name not in ("NODE_RANK", "WORLD_SIZE"):
            yield f"{name}={env[name]} before the command is left out: allranks sets it for every rank"


def _taken(chosen: Mapping[str, _Given]) -> Iterator[str]:
    """Yield each value that a variable of the environment gives, which may have been set for another tool."""
    for field, given in chosen.items():
        if given.layer is Layer.ENVIRONMENT and not given.where.startswith("ALLRANKS_"):
            yield f"{option_name(field).lstrip('-')} {given.value} (from {given.where})"


def _strongest(field: str, items: Iterable[tuple[str, _Given]]) -> _Given | None:
    return min((item for name, item in items if name == field), key=lambda item: item.layer, default=None)


def _clusters(tables: Json, source: str) -> dict[str, dict[str, Json]]:
    """Return the keys of each cluster by its name; refuse all but a table of settings."""
    if tables is None:
        return {}
    keys_by_name: dict[str, dict[str, Json]] = {}
    for name, keys in read_tables(tables, CLUSTER, "lab", source):
        where = f"{source}: [cluster.{name}]"
        own = _config_keys(keys, where)
        if CLUSTER in own:
            raise ConfigError(f"{where}: cluster names another cluster. Write its settings here")
        if "runs_dir" in own:
            raise ConfigError(f"{where}: commands that read runs know no cluster. Set runs-dir above all tables")
        keys_by_name[name] = own
    return keys_by_name


def _named_cluster(
    items: Iterable[tuple[str, _Given]], clusters: Mapping[str, dict[str, Json]], user_source: str
) -> Iterator[tuple[str, _Given]]:
    """Yield what is set in the cluster that the strongest source names.

    Raise UsageError or ConfigError for one that is not defined.
    """
    choice = _strongest(CLUSTER, items)
    if choice is None:
        return
    name = str(_read(CLUSTER, choice))
    if name in clusters:
        yield from _of_file(clusters[name], f"{user_source}: [cluster.{name}]", Layer(choice.layer + 1))
        return
    meant = suggestion(name, clusters)
    if meant:
        hint = f"hint: --cluster {meant}"
    elif clusters:
        hint = f"Defined are {join_words(list(clusters))} in {user_source}"
    else:
        hint = f'hint: write [cluster.{name}] with hosts = "…" into ~/.config/allranks/config.toml'
    raise ConfigError(f"{choice.where}: found {show(name)}, which is not a cluster\n{hint}")


def _tables(items: Sequence[tuple[str, _Given]]) -> dict[str, _Given]:
    """Return of each table of files the strongest one."""
    strongest = [(name, _strongest(name, items)) for name in TABLES]
    return {name: given for name, given in strongest if given is not None}


def _config_keys(config: Mapping[str, Json], source: str) -> dict[str, Json]:
    """Return the file's keys as field names; refuse those that are unknown or there twice."""
    fields: dict[str, Json] = {}
    setting_names = [*(row.name for row in SETTINGS.values() if row.in_file), *TABLES]
    for key, value in config.items():
        spelt = key.replace("_", "-")
        field = _ALIASES.get(spelt, spelt.replace("-", "_"))
        if spelt in OPTION_ONLY:
            raise ConfigError(f"{source}: {key} is an option only. Give --{spelt} on the command line")
        if field not in setting_names:
            raise ConfigError(f"{source}: {show(key)} is not a setting{_close(field, setting_names)}")
        if field in fields:
            raise ConfigError(f"{source}: {key} is set twice, with '-' and with '_'. Keep one")
        fields[field] = value
    return fields


def _close(word: str, names: Iterable[str]) -> str:
    near = suggestion(word, names).replace("_", "-")
    return f". Did you mean {near}?" if near else ". `allranks init` lists them all"


def _collect(items: Iterable[tuple[str, _Given]]) -> dict[str, list[_Given]]:
    """Sort values by field, the strongest first. `--nodes MIN:MAX` is two, and of a weaker source the second alone."""
    by_field: dict[str, list[_Given]] = {}
    for field, item in sorted(items, key=lambda item: (item[1].layer, item[0] == "nodes")):  # min_nodes before it
        if field == "nodes" and isinstance(item.value, str) and ":" in item.value:
            least, _, most = item.value.partition(":")
            if field not in by_field:
                by_field.setdefault("min_nodes", []).append(replace(item, value=least))
            item = replace(item, value=most)
        by_field.setdefault(field, []).append(item)
    return by_field


def _options(options: Mapping[str, Json]) -> Iterator[tuple[str, _Given]]:
    for field, value in options.items():
        if field in TABLES or value is None or (isinstance(value, (list, tuple)) and not value):
            continue
        if field not in SETTINGS:
            raise UsageError(f"{option_name(field)} is not an option{_close(field, SETTINGS)}")
        yield field, _Given(value, option_name(field), Layer.OPTION)


def _environment(environ: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for name, field in VARIABLES.items():
        value = environ.get(name, "").strip()
        if value:
            yield field, _Given(value, name, Layer.ENVIRONMENT)


def _of_file(keys: Mapping[str, Json], source: str, layer: Layer) -> Iterator[tuple[str, _Given]]:
    """Yield what a settings file has, or the table of a cluster, its tables too."""
    places = {ROLES: source, "env": f"{source}: [env]"}
    for field, value in keys.items():
        yield field, _Given(value, places.get(field, f"{source}: {field.replace('_', '-')}"), layer)


def _settings_in(files: Iterable[tuple[str, _Given]]) -> Iterator[tuple[str, _Given]]:
    return ((field, given) for field, given in files if field not in TABLES)


def _targets(entries: dict[str, list[_Given]]) -> dict[str, list[_Given]]:
    """One target: the strongest layer that names one. A weaker NNODES says nothing of --local."""
    chosen = dict(entries)
    named = [name for name in TARGETS if name in entries and entries[name][0].value not in (None, False, "false")]
    targets = sorted(named, key=lambda name: entries[name][0].layer)
    for loser in targets[1:]:
        first = entries[targets[0]][0]
        other = entries[loser][0]
        if first.layer == other.layer:
            raise ConfigError(f"{first.where} and {other.where} are both set. Keep one of them")
        del chosen[loser]
    local = entries.get("local")
    nodes = entries.get("nodes")
    if "local" in chosen and nodes and local and local[0].layer < nodes[0].layer:
        del chosen["nodes"]
    return chosen


def _merge(field: str, candidates: Sequence[_Given]) -> Json:
    """Return the strongest value; join the ssh options of all sources."""
    if field == "ssh_options":
        return tuple(word for item in candidates for word in _as_tuple(_read(field, item)))
    return _read(field, candidates[0])


def _as_tuple(value: Json) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _read(field: str, entry: _Given) -> Json:
    return SETTINGS[field].read(entry.value, entry.where)


def _remarks(values: Mapping[str, Json], environ: Mapping[str, str]) -> Iterator[str]:
    rank = environ.get("NODE_RANK", "").strip()
    if rank and "node_rank" not in values:
        yield f"NODE_RANK={rank} is ignored: node ranks follow the order of the host list"
    if not values.get("retries") and not values.get("min_nodes") and values.get("spares"):
        yield f"--spares {values['spares']} without --retries: no attempt would use them. Set --retries 1 or more"
    if not values.get("retries") and values.get("on_hang") == "restart":
        yield "--on-hang restart without --retries only stops. Set --retries 1 or more"


def _misplaced(values: Mapping[str, Json]) -> Iterator[str]:
    """Yield a remark on an option of allranks behind the program, which has it as an argument of its own.

    Raise UsageError for one that would have named the nodes where none is named: all would be trained here.
    """
    words = [word for word in _as_tuple(values.get("command")) if isinstance(word, str)]
    if not words or read_tool(words) is not None:
        return
    rank = node_rank_in(words)
    if rank and values.get("local") != 1:
        yield f"{shlex.join(rank)} stands behind {words[0]}, and every node gets it"
    behind = [word for word in words[1:] if word.partition("=")[0] in _OURS_ALONE]
    if not behind:
        return
    names_nodes = [word for word in behind if word.partition("=")[0] in _NAME_NODES]
    if names_nodes and not any(values.get(name) for name in (*TARGETS, "node_rank")):
        at = words.index(names_nodes[0])
        takes = 2 if names_nodes[0] == "--hosts" else 1
        ordered = [*words[at : at + takes], *words[:at], *words[at + takes :]]
        raise UsageError(
            f"{names_nodes[0]} stands behind {words[0]} and would go to it, and no nodes are named before it. Where "
            f"it is the program's own, set --local 1 before the program\nhint: allranks run {shlex.join(ordered)}"
        )
    yield f"{behind[0]} stands behind {words[0]} and goes to it. An option of allranks stands before the program"


def _world_size(environ: Mapping[str, str]) -> int | None:
    text = environ.get("WORLD_SIZE", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) > 0):
        raise ConfigError(f"WORLD_SIZE: found {show(text)}, set a whole number above 0 or unset it")
    return int(text)


def refuse_other_engines(options: Mapping[str, Json], engine: str) -> None:
    """Refuse options that need another engine than `engine` (k8s, sky, slurm; empty: none of them).

    Settings of a file may serve several engines."""
    for name, value in options.items():
        row = SETTINGS.get(name)
        if row is None or not row.engines or engine in row.engines or value in (None, False, (), []):
            continue
        needed = join_words([f"--{needed}" for needed in row.engines], "or")
        raise UsageError(f"{row.option} needs {needed}. The nodes of this command come from elsewhere")
