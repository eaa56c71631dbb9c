"""Every node reads its data about as fast as the others.

One reader, 256 MB, past the page cache where the file system allows it (open(2), O_DIRECT): dd(1) of
coreutils and busybox. Nodes of one machine share its disk, so the best of them counts.
"""

from __future__ import annotations

import re
from typing import List, Optional

from allranks.findings import Finding

from ..compare import Nodes, best_of_machines, median, part, place, remote
from ..host import CouldNotLook, Host, Ran, Record, Request

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


def collect(host: Host) -> Optional[Record]:
    """{"path", "mb_s", "direct"}; None where nothing can be read past the cache."""
    data = next((str(p) for p in host.request.get("data_paths") or ()), "")
    path = _a_file(host, data) if data else ""
    if path:
        direct = host.run(["dd", f"if={path}", "of=/dev/null", "bs=4M", "count=64", "iflag=direct"], LIMIT)
        ran = direct if direct.ok else host.run(["dd", f"if={path}", "of=/dev/null", "bs=4M", "count=64"], LIMIT)
        return _result(ran, path, direct.ok)
    workdir = part(host.facts, "workdir")
    if not workdir.get("cwd_ok"):
        return None
    where = str(workdir["path"])
    try:
        if host.space(where).free < 16 * LEAST:
            return None
    except OSError:
        return None
    ran = host.run(["sh", "-c", SCRATCH], LIMIT, cwd=where)
    return _result(ran, f"a new file in {where}", True) if ran.ok or ran.code is None else None


def _a_file(host: Host, path: str) -> str:
    """The path itself, or the first large file below it."""
    ran = host.run(["find", "-L", path, "-type", "f", "-size", "+16384k", "-print", "-quit"], 10.0)
    return ran.out.partition("\n")[0]


def _result(ran: Ran, path: str, direct: bool) -> Optional[Record]:
    if ran.code is None:
        raise CouldNotLook(f"{path}: {ran.err}")
    match = COPIED.search(ran.err)
    if not match or int(match.group(1)) < LEAST:
        return None
    speed = int(match.group(1)) / max(float(match.group(2)), 1e-6) / 1e6
    return {"path": path[:300], "mb_s": round(speed), "direct": direct}


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A warning for a node that reads less than half as fast as the median."""
    findings = []
    for direct in (True, False):
        collected = {n: part(f, ID) for n, f in facts_by_node.items() if part(f, ID).get("direct") is direct}
        speeds = best_of_machines(facts_by_node, {n: float(v["mb_s"]) for n, v in collected.items()})
        usual = median(speeds.values())
        for node, speed in speeds.items():
            if speed < ODD * usual:
                message = f"{node} reads {collected[node]['path']} at {speed:.0f} MB/s"
                message += f"; the median of {len(speeds)} nodes is {usual:.0f} MB/s"
                look = remote(node, "iostat", "-x", "1", "3")
                remedy = f"measure again, then look for a busy or failing disk: {look}"
                findings.append(Finding(ID, "warn", message, remedy, place([node])))
    return findings
