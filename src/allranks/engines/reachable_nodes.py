"""The nodes of a target that this process reaches directly: a host list, an allocation, or this machine (IO)."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from allranks.cluster import Cluster, Node
from allranks.cluster.hostfile import parse_host_argument, parse_hostfile
from allranks.cluster.hostlist import MAX_HOSTS, exclude, split_exclusions, split_list
from allranks.cluster.nodes import make_cluster, set_aside, virtual_cluster
from allranks.errors import HostfileError, UsageError
from allranks.gang.transport import Transport
from allranks.runs.nodeledger import ledger_file, read_ledger, remembered, suspects
from allranks.settings import RunSpec
from allranks.settings.runspec import SSH
from allranks.settings.table import suggestion

from . import find_nodes, reach_nodes

FILE_LIMIT = 1 << 20
SLOT_FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE")  # hold a host once a slot


def find_cluster(spec: RunSpec, spares: int = 0) -> Cluster:
    """Return the nodes of the target; without one, one virtual node. The last `spares` of them stand by.

    With --avoid those come last that earlier runs suspect, so that spares are of them. Where there are fewer other
    nodes than the run needs, suspects work too, and `avoided` says so. Raise UsageError where the target has no such
    nodes.
    """
    avoids = spec.recovery.avoid and not spec.target.local
    if not spares and not avoids:
        return find_nodes(spec, 0)
    listed = find_nodes(spec, max(1, spares))  # all of them: --nodes takes the first of the new order
    reasons = suspects(remembered(read_ledger(ledger_file(os.environ)), time.time())) if avoids else {}
    in_order = sorted(listed.nodes, key=lambda node: _reason(node, reasons) is not None)
    nodes = tuple(dataclasses.replace(node, index=index) for index, node in enumerate(in_order))
    ordered = dataclasses.replace(listed, nodes=nodes)
    chosen = set_aside(ordered, spares, spec.target.nodes, spec.launch.nproc, spec.target.min_nodes)
    return dataclasses.replace(chosen, avoided=tuple(_avoided(listed, chosen, reasons)))


def _reason(node: Node, reasons: Mapping[str, str]) -> str | None:
    return reasons.get(node.name) or reasons.get(node.host)


def _avoided(listed: Cluster, chosen: Cluster, reasons: Mapping[str, str]) -> Iterator[str]:
    working = {node.host for node in chosen.nodes}
    spares = {node.host for node in chosen.spares}
    for node in listed.nodes:
        reason = _reason(node, reasons)
        if reason is None:
            continue
        if node.host in working:
            yield f"--avoid: {node.name} works all the same, as no other node is left for it ({reason})"
        elif node.host in spares:
            yield f"--avoid: {node.name} is a spare ({reason})"
        else:
            yield f"--avoid: {node.name} is left out ({reason})"


@contextlib.contextmanager
def reached(spec: RunSpec, cluster: Cluster) -> Iterator[Transport]:
    """Reach the nodes of a target for a command other than `run`, and give them back at the end."""
    reach = reach_nodes(spec.changed(reach=SSH), cluster)  # its connections are as short as such a command
    try:
        yield reach.transport
    finally:
        reach.end()


HERE = "no --hosts or other target: this machine"  # where the list of nodes came from


def listed_cluster(spec: RunSpec, first: int | None) -> Cluster:
    """Return the first nodes of --hosts, all where None; virtual nodes where no hosts are named."""
    hosts = spec.target.hosts
    if hosts is None:
        virtual = virtual_cluster(spec.target.local or 1)
        source = virtual.source if spec.target.local else HERE
        return make_cluster(
            virtual.nodes, source=source, first=first, is_local=lambda host: True, least=spec.target.min_nodes
        )
    path = Path(hosts).expanduser()
    if path.is_file():
        written = [os.environ.get(name) for name in SLOT_FILES]
        nodes = parse_hostfile(read_hostfile(path), hosts, per_slot=str(path) in written)
        source = hosts
    elif "/" in hosts or hosts.endswith((".txt", ".hosts")):
        raise HostfileError(_no_hostfile(path))
    else:
        nodes = parse_host_argument(expand_groups(hosts, os.environ))
        source = "--hosts"
    return make_cluster(
        nodes,
        source=source,
        first=first,
        is_local=this_machine(),
        caller=getpass.getuser(),
        least=spec.target.min_nodes,
    )


def _no_hostfile(path: Path) -> str:
    """Word the refusal of a hostfile that does not exist, with the file beside it that was probably meant."""
    message = f"{path}: no such file. --hosts takes a hostfile or a list such as h1,h2"
    try:
        beside = {entry.stem: entry.name for entry in sorted(path.parent.iterdir())}
    except OSError:
        return message
    meant = beside.get(suggestion(path.stem, beside))
    return f"{message}\nhint: --hosts {shlex.quote(str(path.with_name(meant)))}" if meant else message


def read_hostfile(path: Path) -> str:
    """Return the text of a hostfile; raise HostfileError where it cannot be read."""
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


_GROUP = re.compile(r"@([A-Za-z0-9_][A-Za-z0-9_.-]*:)?[A-Za-z0-9_][A-Za-z0-9_.-]*")


def expand_groups(hosts: str, environ: Mapping[str, str]) -> str:
    """Put the names of its hosts in the place of each group of a `--hosts` list, in ClusterShell's order.

    A group starts with `@` (`user@host` does not). A list without one stays as it is. Raises UsageError where
    ClusterShell or its configuration is missing, or a group is unknown or empty."""
    if not any(item.lstrip(" \t").startswith("@") for item in hosts.split(",")):
        return hosts
    items: list[str] = []
    for item in split_list(hosts):
        if item.startswith("@"):
            items += _hosts_of(item, environ)
        else:
            items.append(item)
    return ",".join(items)


def _hosts_of(item: str, environ: Mapping[str, str]) -> list[str]:
    group, excluded = split_exclusions(item)
    if not _GROUP.fullmatch(group):
        raise UsageError(f"--hosts: {group!r} is not a node group. Write @group or @source:group")
    names = _resolve(group, _configuration(environ))
    if not names:
        raise UsageError(f"--hosts: the node group {group} has no host\nhint: cluset -e {group}")
    if len(names) > MAX_HOSTS:
        raise UsageError(f"--hosts: the node group {group} has {len(names)} hosts. {MAX_HOSTS} are the most")
    return exclude(names, excluded, item)


def _configuration(environ: Mapping[str, str]) -> Path:
    config_home = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    directory = environ.get("CLUSTERSHELL_CFGDIR") or os.path.join(config_home, "clustershell")
    path = Path(directory) / "groups.conf"
    if not path.is_file():
        raise UsageError(
            f"--hosts: a node group needs ClusterShell's configuration, and {path} does not exist\n"
            "hint: export CLUSTERSHELL_CFGDIR=/etc/clustershell, if your site keeps its groups there"
        )
    return path


def _resolve(group: str, configuration: Path) -> list[str]:
    try:  # an extra that few have; its import reads files
        from ClusterShell.NodeSet import NodeSet, NodeSetException
        from ClusterShell.NodeUtils import GroupResolverConfig, GroupResolverError
    except ImportError:
        raise UsageError(
            f"--hosts: {group} is a node group, and ClusterShell is not installed here\n"
            "hint: pip install ClusterShell, or write the hosts: node[01-04]"
        ) from None
    try:
        return list(NodeSet(group, resolver=GroupResolverConfig([str(configuration)])))
    except (NodeSetException, GroupResolverError) as error:
        raise UsageError(f"ClusterShell does not know {group}: {error}\nhint: cluset -L") from None
