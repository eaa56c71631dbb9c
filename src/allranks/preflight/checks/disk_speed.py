"""Every node reads its data about as fast as the others.

One reader, 256 MB, past the page cache where the file system allows it (open(2), O_DIRECT): dd(1) of
coreutils and busybox. Nodes of one machine share its disk, so the best of them counts.
"""

from __future__ import annotations

import re
from typing import Optional

from allranks.protocol.records import NamedTuple

from ..compare import Findings, Nodes, collected, remote, slow_machines, warn
from ..host import CouldNotLook, Host, Ran
from ..typed_facts import Request

ID = "disk_speed"
GROUP = "storage"
LEVEL = "full"
SECONDS = 75.0
ALONE = True
LIMIT = 30.0
ODD = 0.5
LEAST = 16 << 20  # less says little
COPIED = re.compile(r"^(\d+) bytes.* copied, ([0-9.e+-]+) s", re.MULTILINE)
# Unlinked while open, so that nothing stays whatever happens; random, as some file systems compress.
SCRATCH = """
f=.allranks-read-$(uname -n)-$$
trap 'rm -f -- "$f"' EXIT HUP INT TERM
exec 3<>"$f" || exit 1
dd if=/dev/urandom of="$f" bs=1M count=64 conv=fsync 2>/dev/null || exit 1
rm -f -- "$f"
exec dd if=/proc/self/fd/3 of=/dev/null bs=4M count=64 iflag=direct
"""


class DiskSpeed(NamedTuple):
    """What was read and how fast; `direct`: past the page cache."""

    path: str
    mb_s: float
    direct: bool


def collect(host: Host) -> Optional[DiskSpeed]:
    """None where nothing can be read past the cache."""
    for data in host.request.asked.data_paths[:1]:
        path = _a_file(host, data)
        if path:
            read = ["dd", f"if={path}", "of=/dev/null", "bs=4M", "count=64"]
            direct = host.run([*read, "iflag=direct"], LIMIT)
            return _result(direct if direct.ok else host.run(read, LIMIT), path, direct.ok)
    where = host.facts.workdir.path
    try:
        if not host.facts.workdir.cwd_ok or host.space(where).free < 16 * LEAST:
            return None
    except OSError:
        return None
    ran = host.run(["sh", "-c", SCRATCH], LIMIT, cwd=where)
    if ran.ok or ran.code is None:
        return _result(ran, f"a new file in {where}", True)
    return None


def _a_file(host: Host, path: str) -> str:
    """Find a large file: the path itself, or the first one below it; empty without one."""
    ran = host.run(["find", "-L", path, "-type", "f", "-size", "+16384k", "-print", "-quit"], 10.0)
    return ran.out.partition("\n")[0]


def _result(ran: Ran, path: str, direct: bool) -> Optional[DiskSpeed]:
    if ran.code is None:
        raise CouldNotLook(f"{path}: {ran.err}")
    match = COPIED.search(ran.err)
    if not match or int(match.group(1)) < LEAST:
        return None
    speed = int(match.group(1)) / max(float(match.group(2)), 1e-6) / 1e6
    return DiskSpeed(path[:300], round(speed), direct)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Warn of a node that reads less than half as fast as the median."""
    nodes = collected(facts_by_node, ID, DiskSpeed)
    for direct in (True, False):
        speeds = {node: one.mb_s for node, one in nodes.items() if one.direct is direct}
        for node, figures in slow_machines(facts_by_node, speeds, ODD, "{:.0f} MB/s"):
            message = f"{node} reads {nodes[node].path} at {figures}"
            remedy = f"measure again, then look for a busy or failing disk: {remote(node, 'iostat -x 1 3')}"
            yield warn(ID, node, message, remedy)
