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
        (claimed if _claim(job, node) else taken).append(node)
    return claimed, taken


def is_ours(job: str, node: str) -> bool:
    """Whether this process has claimed a node."""
    return (job, node) in _held


def give_back() -> None:
    """Let every node go: nothing runs on them."""
    while _held:
        _held.popitem()[1].close()


def _claim(job: str, node: str) -> bool:
    """False where another process has it. Where the kernel has no such names, every node is free."""
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
