"""The third means of finding a run's processes: a control group of its own, where one can be made.

Version 2 where the session's group is delegated (or the user is root), else version 1's freezer or pids
hierarchy as root. A group only finds what lineage and run tag have lost; it limits nothing.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Tuple

from .files import read_text

MEMBERS_LIMIT = 16 << 20
ROOT = "/sys/fs/cgroup"
HIERARCHIES = ("", "freezer", "pids")


def parent_groups() -> List[str]:
    """Directories of this process's own groups, version 2 first."""
    parents = []
    lines = [line.split(":", 2) for line in read_text("/proc/self/cgroup").splitlines()]
    for hierarchy in HIERARCHIES:
        for entry in lines:
            if len(entry) == 3 and hierarchy in entry[1].split(","):
                parents.append(os.path.join(ROOT, hierarchy, entry[2].lstrip("/")))
    return parents


def join_own(name: str) -> Optional[str]:
    """Make a group called `name` and move this process into it; return its path, None where that is not allowed."""
    for parent in parent_groups():
        path = os.path.join(parent, name)
        if not os.path.exists(os.path.join(parent, "cgroup.procs")):
            continue
        try:
            os.mkdir(path)
        except OSError:
            continue
        try:
            with open(os.path.join(path, "cgroup.procs"), "w") as file:
                file.write(str(os.getpid()))
            return path
        except OSError:
            remove(path)
    return None


def members(path: Optional[str]) -> List[int]:
    """Pids in the group; none where the group does not exist."""
    if path is None:
        return []
    text = read_text(os.path.join(path, "cgroup.procs"), MEMBERS_LIMIT)
    return [int(word) for word in text.split() if word != "0"]


def remove(path: Optional[str]) -> None:
    """Remove the group once it is empty."""
    if path is not None:
        try:
            os.rmdir(path)
        except OSError:
            pass


# -- CPU quotas --------------------------------------------------------------------------------------


def quota_groups(pid: int) -> List[str]:
    """List the directories that may hold CPU quotas of a process: its groups and all above, version 2 and version 1."""
    paths = []
    for line in read_text("/proc/%d/cgroup" % pid).splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or not (parts[1] == "" or "cpu" in parts[1].split(",")):
            continue
        for root in _roots(parts[1]):
            group = parts[2].strip("/")
            while True:
                paths.append(os.path.join(root, group) if group else root)
                if not group:
                    break
                group = group.rpartition("/")[0]
    return paths


def _roots(controllers: str) -> List[str]:
    """Where a hierarchy is mounted: `unified` where version 1 is there too (systemd's hybrid layout)."""
    if controllers == "":
        return [ROOT, os.path.join(ROOT, "unified")]
    return [os.path.join(ROOT, name) for name in dict.fromkeys(("cpu", controllers))]


def read_cpu_stat(text: str) -> Tuple[int, int, float]:
    """Read periods, throttled periods and seconds of cpu.stat: `throttled_usec`, and nanoseconds in version 1."""
    values: Dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdecimal():
            values[name] = int(number)
    stood = values.get("throttled_usec", 0) / 1e6 + values.get("throttled_time", 0) / 1e9
    return values.get("nr_periods", 0), values.get("nr_throttled", 0), stood
