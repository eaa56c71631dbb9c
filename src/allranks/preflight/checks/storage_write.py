"""The working directory and the output directory take files: created, synced, removed again.

A small file is written where the program will write. Then fsync(2) waits for the disk or the file server.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Tuple

from allranks.protocol.records import NamedTuple
from allranks.text import join_names

from ..compare import Findings, Nodes, by_item, by_value, collected, evidence_of, fail_if, nodes_with, remote, warn, who
from ..host import CouldNotLook, Host
from ..typed_facts import Request

ID = "storage_write"
GROUP = "storage"
LEVEL = "full"
SECONDS = 70.0
LIMIT = 30.0  # seconds for a path
SLOW = 5
WORKDIR = "the working directory"
OUTPUT = "the output directory"
RUNS = "the runs directory"

# An absent directory will be made: the nearest one above it is tried. The name holds host and pid, as a
# shared directory is tried from all nodes at once. dd's conv=fsync is in coreutils and busybox.
SCRIPT = """
d=$1
while [ ! -e "$d" ] && [ "$d" != / ] && [ "$d" != . ]
do d=$(dirname -- "$d")
done
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


class Written(NamedTuple):
    """A directory: seconds that the file took and where it was, or why it could not be written."""

    what: str
    path: str
    seconds: int = 0
    tried: str = ""
    why: str = ""


def collect(host: Host) -> Optional[List[Written]]:
    """One for each directory."""
    asked = host.request.asked
    places = {asked.runs_dir: RUNS, asked.output_dir: OUTPUT}
    if host.facts.workdir.cwd_ok:  # else the check `workdir` speaks
        places[host.facts.workdir.path] = WORKDIR
    names = list(places.items())[::-1]
    return [_write(host, what, path) for path, what in names if path.startswith("/")] or None


def _write(host: Host, what: str, path: str) -> Written:
    ran = host.run(["sh", "-c", SCRIPT, "sh", path], LIMIT)
    for line in ran.out.splitlines():
        if line.startswith("allranks-wrote "):
            _, seconds, directory = line.split(" ", 2)
            return Written(what, path, int(seconds), directory)
    if ran.code is None:
        if "no answer" not in ran.err:
            raise CouldNotLook(ran.err)
        return Written(what, path, why=f"no answer within {LIMIT:g} s")
    lines = [line for line in ran.err.splitlines() if line.strip()] or ["it failed"]
    plain = [line for line in lines for reason, _, _ in REASONS if reason in line]
    return Written(what, path, why=(plain + lines)[0][:300])


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """Fail for the output directory, warn for the working directory (the program may not write there)."""
    nodes = collected(facts_by_node, ID, List[Written])
    by_place = {node: {(one.what, one.path): one for one in written} for node, written in nodes.items()}
    for (what, path), by_node in by_item(by_place).items():
        yield from _refused(request, what, path, by_node)
        yield from _slow(what, path, by_node)


def _refused(request: Request, what: str, path: str, by_node: Mapping[str, Written]) -> Findings:
    reasons = {node: _reason(one.why) for node, one in by_node.items() if one.why}
    for (label, reason), nodes in by_value(reasons).items():
        may_be_meant = what == WORKDIR and label == "permission-denied"
        if may_be_meant and len(nodes) == len(by_node) and request.asked.output_dir:
            continue  # code that is mounted read-only everywhere, and another place to write
        message = f"{what} {path} on {join_names(nodes)} can't be written: {reason}"
        show = "df -h" if label == "disk-full" else "ls -ld"
        remedy = f"look: {remote(nodes[0], show, path)}"
        if what != RUNS:
            remedy += ", or write elsewhere with --output-dir"
        evidence = [f"{node}: {by_node[node].why}" for node in nodes[:4]]
        yield fail_if(what == OUTPUT, label, nodes, message, remedy, evidence)


def _reason(why: str) -> Tuple[str, str]:
    """Choose the label of the finding, and say why."""
    for text, label, reason in REASONS:
        if text in why:
            return label, reason
    return ID, why


def _slow(what: str, path: str, by_node: Mapping[str, Written]) -> Findings:
    nodes = nodes_with(by_node, lambda one: one.seconds >= SLOW)
    if nodes:
        most = max(by_node[node].seconds for node in nodes)
        message = f"{what} {path} on {who(nodes, 'takes', 'take')} {most} s for 64 KB"
        message += ": its disk or file server is slow, and so will checkpoints be"
        evidence = evidence_of(nodes, lambda node: f"{by_node[node].seconds} s")
        yield warn(ID, nodes, message, f"look: {remote(nodes[0], 'df -hT', path)}", evidence)
