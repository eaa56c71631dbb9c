"""Node and Cluster: machines in order, the first is the master."""

from __future__ import annotations

from dataclasses import dataclass

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
    def local_names(self) -> frozenset[str]:
        """The nodes and spares that are this machine."""
        return frozenset(node.name for node in (*self.nodes, *self.spares) if node.is_local)

    def __len__(self) -> int:
        return len(self.nodes)
