"""The file systems that training writes to have room: bytes and inodes.

The node directory itself is the check nodedir's. 95 % is where imbue's host-health-checks and Meta's GCM
draw the line; on file systems of many terabytes what is left may still be plenty.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from allranks.findings import Finding
from allranks.text import join_names, plural

from ..compare import Nodes, by_value, part, place, remote, size
from ..host import Host, Record, Request

ID = "disk_space"
GROUP = "storage"
LEVEL = "quick"
SECONDS = 10.0
FULL = 0.95
PLENTY = 200 << 30  # some checkpoints of a large model
LITTLE = 1 << 30
HALF = 0.5  # a small file system that is mostly empty is meant to be small
MANY_INODES = 100_000
# below them the check nodedir speaks
NODEDIR_BYTES = 64 << 20
NODEDIR_INODES = 100


def collect(host: Host) -> Optional[List[Record]]:
    """[{"paths", "data", "total", "free", "inodes", "inodes_free"}, …], one for each file system."""
    file_systems: Dict[Tuple[int, int, int], Dict[str, Any]] = {}
    mounts = host.text("/proc/self/mounts", 1 << 20) or ""
    for path, data in _places(host):
        try:
            space = host.space(path)
        except OSError:
            continue  # absent, or not for this user: other checks
        if not space.total or _is_read_only(mounts, path):
            continue
        key = (space.total, space.inodes, space.free >> 26)
        one = file_systems.setdefault(
            key,
            {
                "paths": [],
                "data": True,
                "total": space.total,
                "free": space.free,
                "inodes": space.inodes,
                "inodes_free": space.inodes_free,
            },
        )
        one["paths"].append(path)
        one["data"] = one["data"] and data
    return list(file_systems.values()) or None


def _places(host: Host) -> List[Tuple[str, bool]]:
    """Each path once, and whether it is only read."""
    disk = part(host.facts, "disk")
    request = host.request
    chosen = disk.get("node_dir") or {}
    inodes = chosen.get("inodes")
    is_reported = int(chosen.get("bytes") or 0) < NODEDIR_BYTES or (inodes is not None and int(inodes) < NODEDIR_INODES)
    written = [str((p or {}).get("path") or "") for p in disk.get("node_dirs") or ()]
    written += [str(part(host.facts, "workdir").get("path") or ""), str(request.get("runs_dir") or "")]
    written += [str(request.get("output_dir") or ""), "/dev/shm", "/tmp"]
    places = {path: False for path in written if path.startswith("/")}
    for path in request.get("data_paths") or ():
        if str(path).startswith("/"):
            places.setdefault(str(path), True)
    if chosen and is_reported:
        places.pop(str(chosen.get("path")), None)
    return list(places.items())[:32]


def _is_read_only(mounts: str, path: str) -> bool:
    """An image (squashfs) is always full, and nobody writes there."""
    best = ""
    flags = ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 3:
            point = words[1].replace("\\040", " ")
            if len(point) >= len(best) and (path + "/").startswith(point.rstrip("/") + "/"):
                best = point
                flags = words[3]
    return "ro" in flags.split(",")


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """disk-full: a failure where nothing is left, a warning where little is, or where it is only read."""
    states: Dict[Tuple[str, str, bool], Dict[str, str]] = {}
    for node, facts in facts_by_node.items():
        for one in facts.get(ID) or ():
            state = _state(one)
            if state:
                key = (" and ".join(one["paths"][:4]), state[0], bool(state[1]))
                states.setdefault(key, {})[node] = state[2]
    findings = []
    for (paths, what, none), by_node in states.items():
        for figures, nodes in by_value(by_node).items():
            first = paths.partition(" and ")[0]
            is_one = " and " not in paths
            message = (
                f"{paths} on {join_names(nodes)} {plural(len([paths] if is_one else [paths, '']), 'is', 'are')} {what}"
            )
            option = "--inodes" if "inode" in figures else "-h"
            look = remote(nodes[0], "du", "-x", option, "-d1", first)
            remedy = f"free some: {look} shows where it went"
            findings.append(
                Finding("disk-full", "fail" if none else "warn", f"{message} ({figures})", remedy, place(nodes))
            )
    return findings


def _state(one: Record) -> Optional[Tuple[str, bool, str]]:
    """What to say, whether training fails, the figures."""
    total = int(one["total"])
    free = int(one["free"])
    inodes = int(one.get("inodes") or 0)
    left = int(one.get("inodes_free") or 0)
    figures = f"{size(free)} of {size(total)} left"
    if free <= 0:
        return "full", not one.get("data"), figures
    if inodes and left <= 0:
        return "full", not one.get("data"), f"0 of {inodes} inodes left"
    used = 1 - free / total
    if one.get("data"):
        return None  # reading needs no room
    if (used >= FULL and free < PLENTY) or (free < LITTLE and used > HALF):
        return "nearly full", False, figures
    if inodes and 1 - left / inodes >= FULL and left < MANY_INODES:
        return "nearly full", False, f"{left} of {inodes} inodes left"
    return None
