"""Node and Cluster: machines in order, the first is the master."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from allranks.errors import UsageError
from allranks.findings import Logins
from allranks.text import count_of, format_choice

JOINED = "join"  # the source of nodes that each came by themselves


@dataclass(frozen=True)
class Node:
    """A machine with an address and slots.

    `name` is what the user wrote and what every output shows; `host` is the name or address ssh is given
    (it says nothing about the data network). `slots` is the number of ranks, None where not stated.
    `is_local` marks a list entry that is this machine, or a virtual node: it starts without ssh.
    """

    index: int
    name: str
    host: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    is_local: bool = False


@dataclass(frozen=True)
class Cluster:
    """Ordered nodes; `nodes[0]` is the master. `source` says where the list came from, for messages.

    A node's place in `nodes` is its node rank; its `index` is its place in the user's list, and stays when it takes
    the place of another. `spares` stand by without ranks. `avoided` says which suspects `--avoid` has put last, or why
    it could not.
    """

    nodes: tuple[Node, ...]
    source: str
    spares: tuple[Node, ...] = ()
    avoided: tuple[str, ...] = ()

    @property
    def master(self) -> Node:
        """The node whose rank 0 hosts the rendezvous."""
        return self.nodes[0]

    @property
    def is_virtual(self) -> bool:
        """Tell whether these are virtual nodes of this machine, asked for or for want of a target."""
        return all(node.is_local and node.name == f"local{node.index}" for node in self.nodes)

    @property
    def everyone(self) -> tuple[Node, ...]:
        """The nodes and spares."""
        return (*self.nodes, *self.spares)

    @cached_property
    def logins(self) -> Logins:
        """How someone here gets a command onto the nodes; of nodes that join, only their names are known."""
        far = [] if self.source == JOINED else [node for node in self.everyone if not node.is_local]
        words = {node.name: ssh_words(node) for node in far}
        others = {name: known for name, known in words.items() if known != name}
        return Logins(frozenset(node.name for node in self.everyone if node.is_local), others)

    def __len__(self) -> int:
        return len(self.nodes)


def ssh_words(node: Node) -> str:
    """Write what ssh is given for a node, for a shell: `-p 2222 root@10.0.0.3`."""
    port = f"-p {node.port} " if node.port else ""
    return port + shlex.quote(f"{node.user}@{node.host}" if node.user else node.host)


def make_cluster(
    nodes: Sequence[Node],
    *,
    source: str,
    first: int | None,
    is_local: Callable[[str], bool],
    caller: str | None = None,
    least: int | None = None,
) -> Cluster:
    """Take the first `first` nodes (all where None), number them from 0 and mark those that are this machine.

    `least` of them will do. `is_local` says whether a host is this machine; `caller` is the user who runs allranks. An
    entry with a port of its own (a container behind this address) or with another user is reached by ssh as asked.
    """
    if least is not None and first is not None and least <= len(nodes):
        first = min(first, len(nodes))
    if first is not None and first > len(nodes):
        hosts = count_of(len(nodes), "host")
        choice = format_choice(len(nodes))
        raise UsageError(f"--nodes {first}: {source} has {hosts}. Set --nodes {choice}, or add hosts")
    return Cluster(
        tuple(
            dataclasses.replace(node, index=index, is_local=_starts_here(node, is_local, caller))
            for index, node in enumerate(nodes[:first])
        ),
        source,
    )


def virtual_cluster(count: int) -> Cluster:
    """`count` virtual nodes on this machine, called local0, local1, …"""
    return Cluster(
        tuple(Node(index, f"local{index}", "localhost", is_local=True) for index in range(count)), f"--local {count}"
    )


def set_aside(cluster: Cluster, spares: int, nodes: int | None, nproc: int | None, least: int | None = None) -> Cluster:
    """Set the last `spares` nodes aside as hot spares; of the others the first `nodes` work (all where None).

    `least` working nodes will do.
    """
    total = len(cluster)
    working = nodes or total - spares
    if least is not None and least <= total - spares:
        working = min(working, total - spares)
    if working < 1 or working + spares > total:
        wanted = " ".join(f"--{what} {count}" for what, count in (("nodes", nodes), ("spares", spares)) if count)
        raise UsageError(f"{wanted}: {cluster.source} has {count_of(total, 'host')}. Add hosts, or set fewer")
    chosen = Cluster(cluster.nodes[:working], cluster.source, spares=cluster.nodes[total - spares :])
    for spare in chosen.spares:
        _require_room(spare, chosen, nproc)
    return chosen


def _require_room(spare: Node, cluster: Cluster, nproc: int | None) -> None:
    needs = [nproc or node.slots for node in cluster.nodes]
    if spare.slots is None or any(need is None or need <= spare.slots for need in needs):
        return
    least = min(need for need in needs if need is not None)
    raise UsageError(
        f"--spares: {spare.name} has slots={spare.slots} in {cluster.source}, and every node runs {least} ranks or "
        "more. It could take the place of none. Put another host at the end of the list, or correct its slots"
    )


def _starts_here(node: Node, is_local: Callable[[str], bool], caller: str | None) -> bool:
    if node.port not in (None, 22) or (node.user is not None and node.user != caller):
        return False
    return node.is_local or is_local(node.host)
