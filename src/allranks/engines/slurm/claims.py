"""Which nodes of an allocation this controller has, so that a second run in it takes others (IO).

A claim is an abstract Unix socket (unix(7)) named after user, job and node: it needs no file, two controllers that
start together cannot both have it, and the kernel gives it back when its process ends, however it ends. It is seen on
one host: controllers of one allocation on two hosts do not know of each other.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable

from allranks.cluster import Cluster
from allranks.cluster.slurm_allocation import allocation_cluster, read_allocation, refuse_step, require_nodes
from allranks.errors import UsageError

_held: dict[tuple[str, str], socket.socket] = {}  # by job and node


def claim(job: str, nodes: Iterable[str], count: int | None) -> tuple[list[str], list[str]]:
    """Claim `count` nodes that no other controller here has, in the order of `nodes`; all where it is None.

    Returns the nodes that are now this process's, and those that others have.
    """
    claimed: list[str] = []
    taken: list[str] = []
    for node in nodes:
        if count is not None and len(claimed) == count:
            break
        if _claim(job, node):
            claimed.append(node)
        else:
            taken.append(node)
    return claimed, taken


def allocated_cluster(count: int | None, spares: int) -> Cluster:
    """Return `count` nodes of our allocation, with spares, that no other run in it has; all of them where None."""
    allocation = read_allocation(os.environ)
    if allocation is None:
        nodes = "N" if count is None else count + spares
        raise UsageError(
            "--slurm: this process is outside of an allocation, and only `run` submits a job\n"
            f"hint: begin the command with `salloc --nodes={nodes}`"
        )
    refuse_step(os.environ)
    require_nodes(allocation, count)
    wanted = None
    if count is not None:
        wanted = count + spares
    free, taken = claim(allocation.job, allocation.nodes, wanted)
    chosen = [*free, *taken][:wanted]
    return allocation_cluster(allocation, chosen)


def is_ours(job: str, node: str) -> bool:
    """Whether this process has claimed a node."""
    return (job, node) in _held


def _claim(job: str, node: str) -> bool:
    """Claim a node; False where another process has it. Where the kernel has no such names, every node is free."""
    if (job, node) in _held:
        return True
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        one.bind(f"\0allranks-{os.getuid()}-{job}-{node}".encode()[:107])  # sun_path has 108 bytes
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            one.close()
            return False
    _held[job, node] = one
    return True
