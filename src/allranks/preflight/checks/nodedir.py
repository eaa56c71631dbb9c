"""There is a place for the node directory (logs on their way, sockets), with room in it."""

from __future__ import annotations

from ..compare import Findings, Nodes, fail, remote, size, warn
from ..host import NODE_DIR_INODES, has_room
from ..typed_facts import Request

ID = "nodedir"
GROUP = "storage"
LEVEL = "quick"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """permission-denied where no place can be written, disk-full where the first that can has no room."""
    for node, facts in facts_by_node.items():
        room = facts.disk.node_dir
        if room is None and facts.has_read("disk"):
            tried = ", ".join(one.path for one in facts.disk.node_dirs)
            message = f"{node} has no writable place for the node directory (tried {tried})"
            yield fail("permission-denied", node, message, "name one with --node-dir")
        elif room is not None and not has_room(room):
            left = size(room.bytes or 0)
            if room.inodes is not None and room.inodes < NODE_DIR_INODES:
                left = f"{room.inodes} inodes"
            status = "full" if not room.bytes or room.inodes == 0 else "nearly full"
            message = f"{room.path} on {node} is {status} ({left} left): output could be dropped"
            show = remote(node, "du -xh -d1", room.path)
            remedy = f"free some ({show} shows where it went), or another place with --node-dir"
            yield warn("disk-full", node, message, remedy)
