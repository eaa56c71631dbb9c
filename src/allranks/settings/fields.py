"""Every RunSpec field a user can set: how its value is read, and its name as an option.

A reader takes a value from the command line, the environment or TOML and returns what RunSpec holds; it
raises ValueError whose text says what to set. Readers accept their own results, so a saved spec goes
through them again.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence

from ..cluster.hostlist import MAX_HOSTS
from ..cluster.names import check_host
from ..errors import UsageError
from .units import WANT_DURATION, WANT_SIZE, duration_of, size_of

Reader = Callable[[object], object]
LAUNCHERS = ("direct", "torchrun", "accelerate", "deepspeed", "colossalai", "command")
KINDS = ("job", "jobset", "trainjob", "pods")
SUITES = ("sync", "bandwidth", "pairs", "staged")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_WHOLE = re.compile(r"[0-9]{1,9}")
_SSH_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[ \t]*=|[ \t])[^\x00-\x08\x0a-\x1f\x7f]+")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,499}")
_GPUS = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9./_-]{0,99}:)?[1-9][0-9]{0,3}")
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+-]{0,254}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _whole(low: int, high: int, auto: Sequence[str] = ()) -> Reader:
    """A whole number; one of the words in `auto` stands for None."""
    want = f"a whole number from {low} to {high}" + (f' or "{auto[0]}"' if auto else "")

    def read(value: object) -> object:
        if auto and (value is None or value in auto):
            return None
        number = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise ValueError(want)
        return number

    return read


def _seconds(low: float, above: bool = False) -> Reader:
    """A duration of at least `low` seconds, or above it."""
    want = f"{WANT_DURATION}, {'more than' if above else 'at least'} {low:g}s"

    def read(value: object) -> object:
        seconds = duration_of(value)
        if seconds < low or (above and seconds == low):
            raise ValueError(want)
        return seconds

    return read


def _bytes(low: int) -> Reader:
    """A size of at least `low` bytes."""

    def read(value: object) -> object:
        size = size_of(value)
        if size < low:
            raise ValueError(f"{WANT_SIZE}, at least {low}")
        return size

    return read


def _text(want: str, lines: bool = False) -> Reader:
    """A text that is not empty; without control characters unless `lines`, and never with a NUL."""

    def read(value: object) -> object:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(want)
        if "\0" in value or (not lines and _CONTROL.search(value)):
            raise ValueError(f"{want}, without control characters")
        return value

    return read


def _path(want: str) -> Reader:
    """A text that no program can take as an option."""
    text = _text(want)

    def read(value: object) -> object:
        if isinstance(value, str) and value.startswith("-"):
            raise ValueError(f"{want}, not starting with '-'")
        return text(value)

    return read


def _matching(pattern: re.Pattern[str], want: str) -> Reader:
    def read(value: object) -> object:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(want)
        return value

    return read


def _texts(each: Reader, want: str) -> Reader:
    """A list of texts, each read by `each`; a tuple comes out."""

    def read(value: object) -> object:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(want)
        try:
            return tuple(each(item) for item in value)
        except ValueError:
            raise ValueError(want) from None

    return read


def _word(value: object) -> object:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("a text without NUL")
    return value


def flag(value: object) -> object:
    """A bool, or 1/true/yes/on and 0/false/no/off as text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise ValueError("true or false")


def _hosts(value: object) -> object:
    """A file's path, a comma list, or a TOML array of hosts."""
    want = 'the path of a hostfile or a list such as "node[01-04]"'
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(v, str) for v in value):
        value = ",".join(value)
    return _path(want)(value)


def _host(value: object) -> object:
    try:
        return check_host(value if isinstance(value, str) else "")
    except UsageError as error:
        raise ValueError(f"a host name or an address ({error})") from None


def _network(value: object) -> object:
    """CIDR networks with commas, or a TOML array of them, normalised."""
    want = "networks such as 10.0.0.0/16, with commas between them"
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not texts:
        raise ValueError(want)
    try:
        if not all(isinstance(text, str) and "/" in text for text in texts):
            raise ValueError(want)
        return ",".join(str(ipaddress.ip_network(text.strip(), strict=False)) for text in texts)
    except ValueError:
        raise ValueError(want) from None


def _gpus(value: object) -> object:
    """A number, alone or after a GPU's or a resource's name."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return _matching(_GPUS, "a number of GPUs such as 8, or with a name: amd.com/gpu:8, H100:8")(text)


def _pattern(value: object) -> object:
    want = "a regular expression of Python"
    try:
        re.compile(value if isinstance(value, str) and value else "(")
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{want} ({error})") from None
    return value


READERS: dict[str, Reader] = {
    "command": _texts(_word, 'a list of words such as ["train.py", "--epochs", "3"]'),
    "name": _matching(_RUN_NAME, "at most 40 letters, digits, '.', '_', '-', a letter or digit first"),
    "local": _whole(1, 1024),
    "hosts": _hosts,
    "slurm": flag,
    "partition": _matching(_PARTITION, "a partition of Slurm's, or several with commas"),
    "sbatch": _texts(_text(""), "options of sbatch such as --time=1:00:00"),
    "nodes": _whole(1, MAX_HOSTS),
    "nproc": _whole(1, 1024, auto=("auto", "gpu")),
    "node_rank": _whole(0, MAX_HOSTS - 1),
    "join_port": _whole(1, 65535),
    "secret_file": _path("the path of a file"),
    "k8s": flag,
    "sky": flag,
    "kind": _matching(re.compile("|".join(KINDS)), "one of " + ", ".join(KINDS)),
    "namespace": _matching(_LABEL, "a namespace: small letters, digits and '-'"),
    "context": _text("a context of kubectl's configuration"),
    "image": _matching(_IMAGE, "an image such as registry/name:tag"),
    "gpus": _gpus,
    "shm": _bytes(1 << 20),
    "pod": _path("the path of a YAML file with settings of a pod"),
    "deadline": _seconds(1),
    "infra": _text("a cloud, a region or k8s/CONTEXT, as SkyPilot writes them"),
    "autostop": _seconds(60),
    "launcher": _matching(re.compile("|".join(LAUNCHERS)), "one of " + ", ".join(LAUNCHERS)),
    "python": _path("the name or path of a Python interpreter"),
    "guard_python": _path("the name or path of a Python interpreter"),
    "workdir": _path("the path of a directory"),
    "sync": flag,
    "prelude": _text("shell commands to run before the ranks", lines=True),
    "wrap": _text("a command such as 'apptainer exec --nv IMG'"),
    "ssh_options": _texts(_matching(_SSH_OPTION, ""), "options of ssh_config such as Port=2222"),
    "network": _network,
    "master_addr": _host,
    "master_port": _whole(0, 65535),
    "check": flag,
    "allow": _texts(_matching(_ID, ""), "names of checks or findings such as own_name"),
    "level": _matching(re.compile("quick|full"), "quick or full"),
    "only": _texts(_matching(_ID, ""), "names of checks such as own_name"),
    "data_paths": _texts(_path(""), "paths of files or directories on the nodes"),
    "expect_gpus": _whole(0, 1024),
    "test": _matching(re.compile("quick|full"), "quick (before the program), or full for tests alone"),
    "suite": _matching(re.compile("|".join(SUITES)), "one of " + ", ".join(SUITES)),
    "backend": _matching(re.compile("auto|gloo|nccl"), "auto, gloo or nccl"),
    "size": _bytes(1024),
    "timeout": _seconds(1),
    "min_bandwidth": _bytes(1),
    "max_latency": _seconds(0, above=True),
    "lease": _seconds(2),
    "grace": _seconds(0),
    "stop_grace": _seconds(0),
    "connect_timeout": _seconds(0, above=True),
    "init_timeout": _seconds(0, above=True),
    "hang_timeout": _seconds(0),
    "hang_pattern": _pattern,
    "on_hang": _matching(re.compile("stop|report|restart"), "stop, report or restart"),
    "pg_timeout": _seconds(0, above=True),
    "runs_dir": _path("the path of a directory"),
    "node_dir": _path("the path of a directory on the nodes"),
    "output_dir": _path("the path of a directory"),
    "retries": _whole(0, 10_000),
    "spares": _whole(0, MAX_HOSTS),
    "audit_data": _whole(0, 10_000),
    "on_audit": _matching(re.compile("report|stop"), "report or stop"),
    "debug": flag,
    "step_pattern": _pattern,
    "fold": flag,
    "end_leftovers": flag,
    "detach": flag,
    "dry_run": flag,
    "json": flag,
}
OPTION_ONLY = ("dry_run", "json", "node_rank")
_OPTION_NAMES = {
    "ssh_options": "--ssh-option", "fold": "--no-fold", "check": "--no-check", "data_paths": "--data-path",
    "command": "the command after --", "join_port": "--port",
}  # fmt: skip


def option_name(field: str) -> str:
    """A field as the option that sets it."""
    return _OPTION_NAMES.get(field, "--" + field.replace("_", "-"))
