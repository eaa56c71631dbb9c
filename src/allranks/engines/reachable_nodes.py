"""The nodes of a target that this process reaches directly: a host list, an allocation, or this machine (IO)."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from allranks.cluster import Cluster
from allranks.cluster.build import make_cluster, set_aside, virtual_cluster
from allranks.cluster.hostfile import parse_host_argument, parse_hostfile
from allranks.errors import HostfileError
from allranks.gang.transport import Transport
from allranks.settings import RunSpec
from allranks.settings.table import suggestion

from . import find_nodes, reach_nodes
from .nodegroups import expand_groups, has_groups

FILE_LIMIT = 1 << 20


def find_cluster(spec: RunSpec, spares: int = 0) -> Cluster:
    """Return the nodes of the target; without one, one virtual node. The last `spares` of them stand by.

    Raise UsageError where the target has no such nodes.
    """
    cluster = find_nodes(spec, spares)
    if not spares:
        return cluster
    return set_aside(cluster, spares, spec.target.nodes, spec.launch.nproc)


@contextlib.contextmanager
def reached(spec: RunSpec, cluster: Cluster) -> Iterator[Transport]:
    """Reach the nodes of a target for a command other than `run`, and give them back at the end."""
    reach = reach_nodes(spec, cluster)
    try:
        yield reach.transport
    finally:
        reach.end()


def listed_cluster(spec: RunSpec, first: int | None) -> Cluster:
    """Return the first nodes of --hosts, all where None; virtual nodes where no hosts are named."""
    if spec.target.hosts is None:
        virtual = virtual_cluster(spec.target.local or 1)
        return make_cluster(virtual.nodes, source=virtual.source, first=first, is_local=lambda host: True)
    path = Path(spec.target.hosts).expanduser()
    if path.is_file():
        nodes = parse_hostfile(_read_hostfile(path), spec.target.hosts)
        source = spec.target.hosts
    elif "/" in spec.target.hosts or spec.target.hosts.endswith((".txt", ".hosts")):
        raise HostfileError(_no_hostfile(path))
    else:
        listed = expand_groups(spec.target.hosts, os.environ) if has_groups(spec.target.hosts) else spec.target.hosts
        nodes = parse_host_argument(listed)
        source = "--hosts"
    return make_cluster(nodes, source=source, first=first, is_local=this_machine(), caller=getpass.getuser())


def _no_hostfile(path: Path) -> str:
    """Word the refusal of a hostfile that does not exist, with the file beside it that was probably meant."""
    message = f"{path}: no such file. --hosts takes a hostfile or a list such as h1,h2"
    try:
        beside = sorted(entry.name for entry in path.parent.iterdir())
    except OSError:
        return message
    meant = suggestion(path.name, beside)
    if not meant:
        return message
    return f"{message}\nhint: --hosts {shlex.quote(str(path.with_name(meant)))}"


def _read_hostfile(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_LIMIT + 1)
    except OSError as error:
        raise HostfileError(f"{path}: {error.strerror}") from None
    if len(data) > FILE_LIMIT:
        raise HostfileError(f"{path}: larger than 1 MiB. Is this a hostfile?")
    return data.decode("utf-8", "replace")


def this_machine() -> Callable[[str], bool]:
    """Return what tells whether a host of the list is this machine: its name, or an address of its own."""
    names = {"localhost", socket.gethostname(), socket.gethostname().split(".")[0]}

    def check(host: str) -> bool:
        if host in names:
            return True
        try:
            entries = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            return False
        return any(_is_bindable(family, address[0]) for family, _, _, _, address in entries)

    return check


def _is_bindable(family: int, address: Any) -> bool:
    """Tell whether an address is this machine's: whether a socket can be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
        return True
    except OSError:
        return False
