"""The file systems that training writes to have room: bytes and inodes.

The node directory itself is the check nodedir's. 95 % is where imbue's host-health-checks and Meta's GCM
draw the line. On file systems of many terabytes what is left may still be plenty.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from allranks.protocol.codec import spread
from allranks.protocol.messages import LITTLE_SPACE
from allranks.protocol.records import NamedTuple
from allranks.text import join_names, plural

from ..compare import Findings, Nodes, by_value, collected, fail_if, remote, size
from ..host import Host, Space, has_room, read_mounts, text_in
from ..typed_facts import Request

ID = "disk_space"
GROUP = "storage"
LEVEL = "quick"
SECONDS = 10.0
FULL = 0.95
PLENTY = 200 << 30  # some checkpoints of a large model
HALF = 0.5  # a small file system that is mostly empty is meant to be small
MANY_INODES = 100_000


@spread("space")
class FileSystem(NamedTuple):
    """One file system, the paths on it, whether all of these are only read."""

    paths: List[str]
    data: bool
    space: Space

    @property
    def state(self) -> Optional[Tuple[str, bool, str]]:
        """What to say, whether training fails, the figures; None where there is room."""
        total, free, inodes_total, inodes_free = self.space
        figures = f"{size(free)} of {size(total)} left"
        inodes = f"{inodes_free} of {inodes_total} inodes left"
        if free <= 0:
            return "full", not self.data, figures
        if inodes_total and inodes_free <= 0:
            return "full", not self.data, inodes
        if self.data:
            return None  # reading needs no room
        used = 1 - free / total
        if (used >= FULL and free < PLENTY) or (free < LITTLE_SPACE and used > HALF):
            return "nearly full", False, figures
        if inodes_total and 1 - inodes_free / inodes_total >= FULL and inodes_free < MANY_INODES:
            return "nearly full", False, inodes
        return None


def collect(host: Host) -> Optional[List[FileSystem]]:
    """One for each file system."""
    file_systems: Dict[Tuple[int, int, int], FileSystem] = {}
    mounts = read_mounts(text_in(host, "/proc/self/mounts", 1 << 20))
    for path, is_data in _places(host):
        try:
            space = host.space(path)
        except OSError:
            continue  # absent, or not for this user: other checks
        above = [mount for mount in mounts if (path + "/").startswith(mount.point.rstrip("/") + "/")]
        options = max(above, key=lambda mount: len(mount.point)).options if above else ()
        if space.total and "ro" not in options:  # an image (squashfs) is always full, and nothing writes there
            key = (space.total, space.inodes, space.free >> 26)
            before = file_systems.get(key, FileSystem([], True, space))
            file_systems[key] = before._replace(paths=[*before.paths, path], data=before.data and is_data)
    return list(file_systems.values()) or None


def _places(host: Host) -> List[Tuple[str, bool]]:
    asked = host.request.asked
    disk = host.facts.disk
    written = [room.path for room in disk.node_dirs]
    written += [host.facts.workdir.path, asked.runs_dir, asked.output_dir, "/dev/shm", "/tmp"]
    places = {path: False for path in written if path.startswith("/")}
    for path in asked.data_paths:
        if path.startswith("/"):
            places.setdefault(path, True)
    if disk.node_dir is not None and not has_room(disk.node_dir):
        places.pop(disk.node_dir.path, None)  # the check nodedir speaks
    return list(places.items())[:32]


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """disk-full: a failure where nothing is left, a warning where little is, or where it is only read."""
    states: Dict[Tuple[Tuple[str, ...], str, bool], Dict[str, str]] = {}
    for node, file_systems in collected(facts_by_node, ID, List[FileSystem]).items():
        for one in file_systems:
            if one.state:
                what, fails, figures = one.state
                states.setdefault((tuple(one.paths[:4]), what, fails), {})[node] = figures
    for (paths, what, fails), by_node in states.items():
        for figures, nodes in by_value(by_node).items():
            are = plural(len(paths), "is", "are")
            message = f"{' and '.join(paths)} on {join_names(nodes)} {are} {what} ({figures})"
            option = "--inodes" if "inode" in figures else "-h"
            show = remote(nodes[0], f"du -x {option} -d1", paths[0])
            remedy = f"free some: {show} shows where it went"
            yield fail_if(fails, "disk-full", nodes, message, remedy)
