"""What CPU quotas of control groups, version 2 and version 1, have held a process back."""

from __future__ import annotations

import os
from typing import Dict, List, Tuple

from .files import read_text

ROOT = "/sys/fs/cgroup"


def quota_groups(pid: int) -> List[str]:
    """List the directories that may hold CPU quotas of a process: its groups and all above, version 2 and version 1."""
    paths = []
    for line in read_text("/proc/%d/cgroup" % pid).splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3 or not (parts[1] == "" or "cpu" in parts[1].split(",")):
            continue
        roots = [os.path.join(ROOT, name) for name in dict.fromkeys(("cpu", parts[1]))]
        if parts[1] == "":
            roots = [ROOT, os.path.join(ROOT, "unified")]  # version 1 is there too: systemd's hybrid layout
        for root in roots:
            group = parts[2].strip("/")
            while True:
                paths.append(os.path.join(root, group) if group else root)
                if not group:
                    break
                group = group.rpartition("/")[0]
    return paths


def read_cpu_stat(text: str) -> Tuple[int, int, float]:
    """Read periods, throttled periods and seconds of cpu.stat: `throttled_usec`, and nanoseconds in version 1."""
    values: Dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdecimal():
            values[name] = int(number)
    stood = values.get("throttled_usec", 0) / 1e6 + values.get("throttled_time", 0) / 1e9
    return values.get("nr_periods", 0), values.get("nr_throttled", 0), stood
