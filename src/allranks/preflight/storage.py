"""Shared by the checks of storage: mounts, and the room that the node directory needs."""

from __future__ import annotations

from typing import List, Tuple

from allranks.protocol.facts import FreeSpace
from allranks.protocol.records import NamedTuple

NODE_DIR_BYTES = 64 << 20
NODE_DIR_INODES = 100


class Mount(NamedTuple):
    """A line of fstab or /proc/self/mounts."""

    source: str
    point: str
    kind: str
    options: Tuple[str, ...]


def read_mounts(text: str) -> List[Mount]:
    """Read the lines that mount something."""
    mounts = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and not words[0].startswith("#") and words[1].startswith("/"):
            point = words[1].replace("\\040", " ").rstrip("/") or "/"
            mounts.append(Mount(words[0], point, words[2], tuple(words[3].split(","))))
    return mounts


def has_room(space: FreeSpace) -> bool:
    """Tell whether the node directory has room; else the check nodedir speaks, and not disk_space."""
    return (space.bytes or 0) >= NODE_DIR_BYTES and (space.inodes is None or space.inodes >= NODE_DIR_INODES)
