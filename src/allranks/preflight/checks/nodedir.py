"""There is a place for the node directory (logs on their way, sockets), with room in it."""

from __future__ import annotations

from allranks.findings import Finding, Where

from ..compare import Nodes, part, remote, size
from ..host import Record, Request

ID = "nodedir"
GROUP = "storage"
LEVEL = "quick"
SMALL = 64 << 20
FEW_INODES = 100


def judge(request: Request, facts_by_node: Nodes) -> list[Finding]:
    """permission-denied where no place can be written, disk-full where the first that can has no room."""
    findings = []
    for node, facts in facts_by_node.items():
        disk = part(facts, "disk")
        if disk:
            findings += _judge_node(node, disk)
    return findings


def _judge_node(node: str, disk: Record) -> list[Finding]:
    place = disk.get("node_dir")
    tried = ", ".join(str(p.get("path")) for p in disk.get("node_dirs") or ())
    if not place:
        message = f"{node} has no writable place for the node directory (tried {tried})"
        return [Finding("permission-denied", "fail", message, "name one with --node-dir", Where(node=node))]
    path = str(place.get("path"))
    free = int(place.get("bytes") or 0)
    inodes = place.get("inodes")
    full_inodes = inodes is not None and int(inodes) < FEW_INODES
    if free >= SMALL and not full_inodes:
        return []
    what = f"{inodes} inodes" if full_inodes else size(free)
    status = "full" if free == 0 or inodes == 0 else "nearly full"
    message = f"{path} on {node} is {status} ({what} left): output could be dropped"
    look = remote(node, "du", "-xh", "-d1", path)
    remedy = f"free some ({look} shows where it went), or another place with --node-dir"
    return [Finding("disk-full", "warn", message, remedy, Where(node=node))]
