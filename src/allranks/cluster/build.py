"""From nodes to a Cluster: the first N of a list, or N virtual nodes on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ..errors import UsageError
from ..text import count_of, format_choice
from .nodes import Cluster, Node

MAX_VIRTUAL = 1024


def make_cluster(
    nodes: Sequence[Node],
    *,
    source: str,
    first: int | None,
    is_local: Callable[[str], bool],
    caller: str | None = None,
) -> Cluster:
    """Take the first `first` nodes (all where None), number them from 0 and mark those that are this machine.

    `is_local` says whether a host is this machine; `caller` is the user who runs allranks. An entry with
    a port of its own (a container behind this address) or with another user is reached by ssh as asked.
    """
    if not nodes:
        raise UsageError(f"{source} has no host. Give at least one")
    if first is not None and not 1 <= first <= len(nodes):
        hosts = count_of(len(nodes), "host")
        choice = format_choice(1, len(nodes))
        raise UsageError(f"--nodes {first}: {source} has {hosts}. Set --nodes {choice}, or add hosts")
    chosen = nodes[: first or len(nodes)]
    return Cluster(
        tuple(
            dataclasses.replace(node, index=index, is_local=_starts_here(node, is_local, caller))
            for index, node in enumerate(chosen)
        ),
        source,
    )


def virtual_cluster(count: int) -> Cluster:
    """`count` virtual nodes on this machine, called local0, local1, …"""
    if not 1 <= count <= MAX_VIRTUAL:
        raise UsageError(f"--local {count}: set a number of virtual nodes from 1 to {MAX_VIRTUAL}")
    return Cluster(
        tuple(Node(index, f"local{index}", "localhost", is_local=True) for index in range(count)), f"--local {count}"
    )


def set_aside(cluster: Cluster, spares: int, nodes: int | None, nproc: int | None) -> Cluster:
    """Set the last `spares` nodes aside as hot spares; of the others the first `nodes` work (all where None)."""
    total = len(cluster)
    working = nodes or total - spares
    if spares and (working < 1 or working + spares > total):
        wanted = f"--nodes {nodes} --spares {spares}" if nodes else f"--spares {spares}"
        raise UsageError(f"{wanted}: {cluster.source} has {count_of(total, 'host')}. Add hosts, or set fewer spares")
    chosen = Cluster(cluster.nodes[:working], cluster.source, spares=cluster.nodes[total - spares :])
    for spare in chosen.spares:
        _require_room(spare, chosen, nproc)
    return chosen


def _require_room(spare: Node, cluster: Cluster, nproc: int | None) -> None:
    """Refuse a spare that has too few slots to stand in for any of the nodes."""
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
