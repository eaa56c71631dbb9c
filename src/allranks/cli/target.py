"""From options, environment and allranks.toml to a RunSpec and a Cluster (reads files, asks the host)."""

from __future__ import annotations

import dataclasses
import getpass
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from allranks.cluster import Cluster
from allranks.cluster.build import make_cluster, set_aside, virtual_cluster
from allranks.cluster.hostfile import parse_host_argument, parse_hostfile
from allranks.cluster.slurm import allocation_cluster, read_allocation, refuse_step, require_nodes
from allranks.errors import ConfigError, HostfileError, UsageError
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved, resolve

from .nodegroups import expand_groups, has_groups

CONFIG_NAME = "allranks.toml"
FILE_LIMIT = 1 << 20


def read_config(path: str | None, environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """The TOML file named by --config or ALLRANKS_CONFIG, else allranks.toml here if there is one."""
    wanted = path or environ.get("ALLRANKS_CONFIG")
    file = Path(wanted or CONFIG_NAME)
    if not wanted and not file.is_file():
        return {}, CONFIG_NAME
    if sys.version_info >= (3, 11):  # here: allranks.pyz has no tomli for Python 3.10
        import tomllib
    else:
        import tomli as tomllib
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_LIMIT + 1)
        if len(data) > FILE_LIMIT:
            raise ConfigError(f"{file}: larger than 1 MiB; is this an allranks.toml?")
        return tomllib.loads(data.decode()), str(file)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None


def resolve_options(options: Mapping[str, Any], config: str | None) -> Resolved:
    """The RunSpec, with a remark for each disagreement; without a target, the Slurm allocation that we are in."""
    document, source = read_config(config, os.environ)
    resolved = resolve(options, os.environ, document, config_source=source)
    spec = resolved.spec
    if spec.hosts is None and spec.local is None and not spec.slurm and read_allocation(os.environ) is not None:
        return dataclasses.replace(resolved, spec=dataclasses.replace(spec, slurm=True))
    return resolved


def say_notes(resolved: Resolved, json_: bool) -> None:
    """Where settings disagree."""
    for note in resolved.notes if not json_ else ():
        sys.stderr.write(f"note: {note}\n")


def find_cluster(resolved: Resolved, spares: int = 0) -> Cluster:
    """The nodes of the target; without one, one virtual node. The last `spares` of them stand by."""
    if not spares:
        return _whole_cluster(resolved.spec, resolved.spec.nodes)
    spec = resolved.spec
    whole = _allocated(spec.nodes, spares) if spec.slurm else _whole_cluster(spec, None)
    return set_aside(whole, spares, spec.nodes, spec.nproc)


def _whole_cluster(spec: RunSpec, first: int | None) -> Cluster:
    if spec.slurm:
        return _allocated(first)
    if spec.hosts is None:
        virtual = virtual_cluster(spec.local or 1)
        return make_cluster(virtual.nodes, source=virtual.source, first=first, is_local=lambda host: True)
    path = Path(spec.hosts)
    if path.is_file():
        nodes, source = parse_hostfile(_read_hostfile(path), spec.hosts), spec.hosts
    elif "/" in spec.hosts or spec.hosts.endswith((".txt", ".hosts")):
        raise HostfileError(f"{spec.hosts}: no such file; --hosts takes a hostfile or a list such as h1,h2")
    else:
        listed = expand_groups(spec.hosts, os.environ) if has_groups(spec.hosts) else spec.hosts
        nodes, source = parse_host_argument(listed), "--hosts"
    return make_cluster(nodes, source=source, first=first, is_local=this_machine(), caller=getpass.getuser())


def _allocated(count: int | None, spares: int = 0) -> Cluster:
    """So many nodes of our allocation, with spares, that no other run in it has; all of them where None."""
    allocation = read_allocation(os.environ)
    if allocation is None:
        raise UsageError("--slurm: this is no allocation; get one first: salloc --nodes=4 (only `run` submits a job)")
    refuse_step(os.environ)
    from allranks.backends.slurm.claims import claim  # imported late: few runs are Slurm's

    require_nodes(allocation, count)
    wanted = count + spares if count is not None else None
    free, taken = claim(allocation.job, allocation.nodes, wanted)
    chosen = [*free, *taken][:wanted]
    return allocation_cluster(allocation, chosen)


def _read_hostfile(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_LIMIT + 1)
    except OSError as error:
        raise HostfileError(f"{path}: {error.strerror}") from None
    if len(data) > FILE_LIMIT:
        raise HostfileError(f"{path}: larger than 1 MiB; is this a hostfile?")
    return data.decode("utf-8", "replace")


def this_machine() -> Callable[[str], bool]:
    """Tells whether a host of the list is this machine: its name, or an address of its own."""
    names = {"localhost", socket.gethostname(), socket.gethostname().split(".")[0]}

    def check(host: str) -> bool:
        if host in names:
            return True
        try:
            found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            return False
        return any(_is_own(family, address[0]) for family, _, _, _, address in found)

    return check


def _is_own(family: int, address: Any) -> bool:
    """An address is this machine's if a socket can be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
        return True
    except OSError:
        return False


def require_command(resolved: Resolved, verb: str = "allranks run") -> None:
    """The words after `--`."""
    if not resolved.spec.command:
        raise UsageError(f"no training command: put it after --, as in `{verb} --local 2 -- train.py`")
