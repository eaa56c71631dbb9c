"""Options, environment and allranks.toml into one RunSpec: option > environment > file > default.

allranks.toml: top-level keys named as the long options, with `-` or `_`, and their values:

    hosts = "hosts.txt"                  # or "node[01-04]", or ["node01", "node02"]
    nproc = 8                            # or "auto"
    lease = "60s"                        # durations; a bare number is seconds
    fold = false                         # --no-fold
    ssh-options = ["Port=2222"]          # added after those of --ssh-option
    command = ["train.py", "--epochs", "3"]
    forward = ["WANDB_API_KEY"]          # copied from the caller's environment
    [env]                                # set in the ranks
    OMP_NUM_THREADS = "8"

`--dry-run` and `--json` belong on the command line only. In `resolve`'s options a key is a RunSpec field,
None or an empty list means not given, and `env` is the list of `--env` arguments.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..cluster.names import show
from ..errors import ConfigError, UsageError
from .fields import OPTION_ONLY, READERS, option_name
from .runspec import RunSpec
from .secrets import redact_text
from .tools import choose_launcher
from .variables import read_variables

ENVIRONMENT = {
    "MASTER_ADDR": "master_addr",
    "MASTER_PORT": "master_port",
    "NNODES": "nodes",
    "NPROC_PER_NODE": "nproc",
    "MAX_RETRIES": "retries",
    "COLOSSALAI_DIST_TIMEOUT": "pg_timeout",
    "NCCL_TIMEOUT": "pg_timeout",
    "COLOSSALAI_MASTER_READY_TIMEOUT": "init_timeout",
    "DEBUG_DISTRIBUTED": "debug",
    "ALLRANKS_RUNS_DIR": "runs_dir",
}
TABLES = ("env", "forward")
TARGETS = ("local", "hosts", "slurm", "k8s", "sky")
_ALIASES = {"ssh_option": "ssh_options"}


@dataclass(frozen=True)
class Resolved:
    """The spec, remarks where sources disagree, and WORLD_SIZE for the plan to compare."""

    spec: RunSpec
    notes: tuple[str, ...] = ()
    expected_world_size: int | None = None


@dataclass(frozen=True)
class _Given:
    """One value of one source. `label` is for notes ("--nodes 4"), `where` for errors; lower layer wins."""

    value: object
    label: str
    where: str
    layer: int
    error: type[UsageError]


def resolve(
    options: Mapping[str, object],
    environ: Mapping[str, str],
    config: Mapping[str, object],
    *,
    config_source: str,
) -> Resolved:
    """One RunSpec out of three layers; UsageError or ConfigError names the source and what to set."""
    config = _config_keys(config, config_source)
    given = _collect(options, environ, config, config_source)
    notes: list[str] = []
    chosen = _targets(given, notes)
    values: dict[str, Any] = {}
    for field, candidates in chosen.items():
        values[field] = _merge(field, candidates, notes)
    if "pg_timeout" in chosen:
        values["pg_timeout_forced"] = chosen["pg_timeout"][0].layer == 0
    variables = read_variables(_env_items(options), config, environ, config_source)
    notes += variables.notes
    notes += _remarks(values, environ)
    values["launcher"], note = choose_launcher(values.get("command", ()), values.get("launcher"))
    notes += [note] if note else []
    spec = RunSpec(**values, env=variables.env, forward=variables.forward)
    return Resolved(spec, tuple(notes), _world_size(environ))


def _config_keys(config: Mapping[str, object], source: str) -> dict[str, object]:
    """The file's keys as field names; unknown and repeated ones are refused."""
    fields: dict[str, object] = {}
    known = [*READERS, *TABLES]
    for key, value in config.items():
        field = _ALIASES.get(key.replace("-", "_"), key.replace("-", "_"))
        if field in OPTION_ONLY:
            raise ConfigError(f"{source}: {key}: give {option_name(field)} on the command line instead")
        if field not in known:
            raise ConfigError(f"{source}: {show(key)} is not a setting{_close(field, known)}")
        if field in fields:
            raise ConfigError(f"{source}: {key} is set twice, with '-' and with '_'; keep one")
        fields[field] = value
    return fields


def _close(word: str, known: list[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {match[0].replace('_', '-')}?" if match else "; `allranks init` lists them all"


def _collect(
    options: Mapping[str, object], environ: Mapping[str, str], config: Mapping[str, object], source: str
) -> dict[str, list[_Given]]:
    """For each field that is set at all, its values from the strongest source to the weakest."""
    given: dict[str, list[_Given]] = {}
    for field, item in (*_options(options), *_environment(environ), *_file(config, source)):
        given.setdefault(field, []).append(item)
    return given


def _options(options: Mapping[str, object]) -> Iterator[tuple[str, _Given]]:
    for field, value in options.items():
        if field in TABLES or value is None or (isinstance(value, (list, tuple)) and not value):
            continue
        if field not in READERS:
            raise UsageError(f"{option_name(field)} is not an option{_close(field, list(READERS))}")
        name = option_name(field)
        yield field, _Given(value, _option_label(field, value), name, 0, UsageError)


def _environment(environ: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for name, field in ENVIRONMENT.items():
        value = environ.get(name, "").strip()
        if value:
            yield field, _Given(value, _label(f"{name}={value}"), name, 1, ConfigError)


def _file(config: Mapping[str, object], source: str) -> Iterator[tuple[str, _Given]]:
    for field, value in config.items():
        if field not in TABLES:
            key = field.replace("_", "-")
            label = _label(f"{key}{_toml(value)} in {source}")
            yield field, _Given(value, label, f"{source}: {key}", 2, ConfigError)


def _option_label(field: str, value: object) -> str:
    """An option as it was written, without secrets; of lists the name alone."""
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{field.replace('_', '-')}"
    name = option_name(field)
    if isinstance(value, (list, tuple)):
        return name
    return _label(f"{name} {value if isinstance(value, str) else show(value)}")


def _label(text: str) -> str:
    """A source with its value for a note: no secrets, one line, not long."""
    line = " ".join(redact_text(text).split())
    return line if len(line) <= 160 else line[:156] + " ..."


def _toml(value: object) -> str:
    """A value about as TOML writes it, for a note; of lists and tables nothing."""
    if isinstance(value, bool):
        return " = " + str(value).lower()
    if isinstance(value, str):
        return f' = "{value}"'
    return f" = {show(value)}" if isinstance(value, (int, float)) else ""


def _targets(given: dict[str, list[_Given]], notes: list[str]) -> dict[str, list[_Given]]:
    """One target: the strongest layer that names one. A weaker NNODES says nothing of --local."""
    chosen = dict(given)
    targets = sorted((name for name in TARGETS if _is_target(given.get(name))), key=lambda name: given[name][0].layer)
    for loser in targets[1:]:
        first, other = given[targets[0]][0], given[loser][0]
        if first.layer == other.layer:
            raise first.error(f"{first.where} and {other.where} are both set; keep one of them")
        notes.append(f"{first.label} overrides {other.label}")
        del chosen[loser]
    local, nodes = given.get("local"), given.get("nodes")
    if "local" in chosen and nodes and local and local[0].layer < nodes[0].layer:
        if _read("nodes", nodes[0], lenient=True) != _read("local", local[0], lenient=True):
            notes.append(f"{local[0].label} overrides {nodes[0].label}")
        del chosen["nodes"]
    return chosen


def _is_target(items: list[_Given] | None) -> bool:
    """Whether it names a target: `slurm = false` names none."""
    return items is not None and items[0].value not in (None, False, "false")


def _merge(field: str, candidates: list[_Given], notes: list[str]) -> object:
    """The strongest value; a note for each weaker one that differs. ssh options are joined."""
    value = _read(field, candidates[0])
    if field == "ssh_options":
        return tuple(word for item in candidates for word in _as_tuple(_read(field, item)))
    for other in candidates[1:]:
        if _read(field, other, lenient=other.layer == 1) != value:
            notes.append(f"{candidates[0].label} overrides {other.label}")
    return value


def _as_tuple(value: object) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _read(field: str, given: _Given, lenient: bool = False) -> object:
    """The value as RunSpec holds it; a variable that is overridden anyway may be nonsense."""
    try:
        return READERS[field](given.value)
    except ValueError as error:
        if lenient:
            return given
        raise given.error(f"{given.where}: found {show(given.value)}, set {error}") from None


def _env_items(options: Mapping[str, object]) -> list[object]:
    """`--env` arguments, names of `forward` among them."""
    items: list[object] = []
    for key in TABLES:
        value = options.get(key)
        if value is None:
            continue
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"--env: found {show(value)}, set NAME=VALUE or NAME")
        items += value
    return items


def _remarks(values: Mapping[str, object], environ: Mapping[str, str]) -> Iterator[str]:
    """What is set and worth a sentence, though nothing overrides it."""
    rank = environ.get("NODE_RANK", "").strip()
    if rank and "node_rank" not in values:
        yield f"NODE_RANK={rank} is ignored: node ranks follow the order of the host list"
    port = values.get("master_port")
    if isinstance(port, int) and 0 < port < 1024:
        yield f"master port {port} is below 1024: only root can listen on it"
    if not values.get("retries") and values.get("spares"):
        yield f"--spares {values['spares']} without --retries: no attempt would use them; set --retries 1 or more"
    if not values.get("retries") and values.get("on_hang") == "restart":
        yield "--on-hang restart without --retries only stops; set --retries 1 or more"


def _world_size(environ: Mapping[str, str]) -> int | None:
    text = environ.get("WORLD_SIZE", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) > 0):
        raise ConfigError(f"WORLD_SIZE: found {show(text)}, set a whole number above 0 or unset it")
    return int(text)


def field_names() -> frozenset[str]:
    """All fields of RunSpec a user can set, for the tests and the template."""
    derived = {"pg_timeout_forced"}
    return frozenset(f.name for f in dataclasses.fields(RunSpec)) - derived
