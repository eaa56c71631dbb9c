"""The working directory and the output directory take files: created, synced, removed again.

A small file is written where the program will write; fsync(2) waits for the disk or the file server.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from allranks.findings import Finding, Status
from allranks.text import join_names, plural

from ..compare import Nodes, by_value, part, place, remote
from ..host import CouldNotLook, Host, Record, Request

ID = "storage_write"
GROUP = "storage"
LEVEL = "full"
SECONDS = 70.0
LIMIT = 30.0  # seconds for a path
SLOW = 5
SEVERAL = (("output_dir", "the output directory"), ("runs_dir", "the runs directory"))

# An absent directory will be made: the nearest one above it is tried. The name holds host and pid, as a
# shared directory is tried from all nodes at once. dd's conv=fsync is in coreutils and busybox.
SCRIPT = """
d=$1
while [ ! -e "$d" ] && [ "$d" != / ] && [ "$d" != . ]; do d=$(dirname -- "$d"); done
f=$d/.allranks-write-$(uname -n)-$$
trap 'rm -f -- "$f"' EXIT HUP INT TERM
a=$(date +%s)
dd if=/dev/zero of="$f" bs=4096 count=16 conv=fsync || exit 1
b=$(date +%s)
rm -f -- "$f" || exit 1
echo "allranks-wrote $((b - a)) $d"
"""
REASONS = (
    ("No space left on device", "disk-full", "no space or inodes left"),
    ("Disk quota exceeded", "disk-full", "your quota is used up"),
    ("Read-only file system", "permission-denied", "the file system is read-only"),
    ("Permission denied", "permission-denied", "your user may not write there"),
)


def collect(host: Host) -> Optional[List[Record]]:
    """For each directory {"what", "path", "seconds"} or {"what", "path", "why"}."""
    results: List[Record] = []
    for what, path in _wanted(host):
        ran = host.run(["sh", "-c", SCRIPT, "sh", path], LIMIT)
        one: Dict[str, Any] = {"what": what, "path": path}
        words = [line.split(" ", 2) for line in ran.out.splitlines() if line.startswith("allranks-wrote ")]
        if words:
            one.update(seconds=int(words[0][1]), tried=words[0][2])
        elif ran.code is None and "no answer" not in ran.err:
            raise CouldNotLook(ran.err)
        else:
            one["why"] = f"no answer within {LIMIT:g} s" if ran.code is None else _first(ran.err)
        results.append(one)
    return results or None


def _wanted(host: Host) -> List[Tuple[str, str]]:
    places = []
    workdir = part(host.facts, "workdir")
    if workdir.get("cwd_ok"):  # else the check `workdir` speaks
        places.append(("the working directory", str(workdir["path"])))
    for key, what in SEVERAL:
        path = str(host.request.get(key) or "")
        if path.startswith("/") and path not in [p for _, p in places]:
            places.append((what, path))
    return places


def _first(text: str) -> str:
    """The line of dd or sh that says why."""
    lines = [line for line in text.splitlines() if line.strip()] or ["it failed"]
    return next((line for line in lines for reason, _, _ in REASONS if reason in line), lines[0])[:300]


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A failure for the output directory, a warning for the working directory (the program may not write there)."""
    collected = {n: f[ID] for n, f in facts_by_node.items() if isinstance(f.get(ID), list)}
    findings = []
    for key in dict.fromkeys((str(one["what"]), str(one["path"])) for ones in collected.values() for one in ones):
        results = {n: one for n, ones in collected.items() for one in ones if (one["what"], one["path"]) == key}
        findings += _refused(request, key, results) + _slow(key, results)
    return findings


def _refused(request: Request, key: Tuple[str, str], results: Nodes) -> List[Finding]:
    what, path = key
    reasons = {n: _reason(str(v["why"])) for n, v in results.items() if "why" in v}
    findings = []
    for (label, reason), nodes in by_value(reasons).items():
        may_be_meant = what == "the working directory" and label == "permission-denied"
        if may_be_meant and len(nodes) == len(results) and request.get("output_dir"):
            continue  # code that is mounted read-only everywhere, and another place to write
        status: Status = "fail" if what == "the output directory" else "warn"
        message = f"{what} {path} on {join_names(nodes)} can't be written: {reason}"
        look = ("df", "-h", path) if label == "disk-full" else ("ls", "-ld", path)
        remedy = f"look: {remote(nodes[0], *look)}"
        remedy += "; or write elsewhere with --output-dir" if what != "the runs directory" else ""
        evidence = tuple(f"{n}: {results[n]['why']}" for n in nodes[:4])
        findings.append(Finding(label, status, message, remedy, place(nodes), evidence))
    return findings


def _reason(why: str) -> Tuple[str, str]:
    for text, label, reason in REASONS:
        if text in why:
            return label, reason
    return ID, why


def _slow(key: Tuple[str, str], results: Nodes) -> List[Finding]:
    slow = {n: int(v["seconds"]) for n, v in results.items() if int(v.get("seconds") or 0) >= SLOW}
    if not slow:
        return []
    nodes = list(slow)
    take = plural(len(nodes), "takes", "take")
    message = f"{key[0]} {key[1]} on {join_names(nodes)} {take} {max(slow.values())} s for 64 KB"
    message += ": its disk or file server is slow, and so will checkpoints be"
    remedy = f"look: {remote(nodes[0], 'df', '-hT', key[1])}"
    return [Finding(ID, "warn", message, remedy, place(nodes), tuple(f"{n}: {s} s" for n, s in list(slow.items())[:8]))]
