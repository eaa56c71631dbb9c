"""The working directory exists on every node and may be entered."""

from __future__ import annotations

import shlex
from typing import List

from ..compare import Findings, Nodes, and_so_for, denied_if, fail, lack, nodes_with, remote
from ..typed_facts import Request

ID = "workdir"
GROUP = "code"
LEVEL = "quick"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """remote-path-missing where it is absent, permission-denied where it can't be entered."""
    workdirs = {node: facts.workdir for node, facts in facts_by_node.items() if facts.has_read("workdir")}
    absent = nodes_with(workdirs, lambda workdir: not workdir.exists)
    closed = nodes_with(workdirs, lambda workdir: workdir.exists and not workdir.cwd_ok)
    if absent:
        path = workdirs[absent[0]].path
        fine = nodes_with(workdirs, lambda workdir: workdir.exists and workdir.cwd_ok)
        message = lack(absent, fine, f"directory {path}")
        yield fail("remote-path-missing", absent, message, copy_remedy(path, absent, bool(fine)))
    if closed:
        yield denied_if(True, closed, workdirs[closed[0]].path, "entered")


def copy_remedy(path: str, absent: List[str], is_elsewhere: bool) -> str:
    """One rsync line for the first node that lacks it; where all do, the path is the thing to correct."""
    if not is_elsewhere:
        return "name a directory that the nodes have with --workdir, or copy it to them"
    quoted = shlex.quote(path.rstrip("/") + "/")
    copy = f"rsync -a {quoted} {absent[0]}:{quoted}{and_so_for(absent[1:])}"
    return f"{remote(absent[0], 'mkdir -p', path)} && {copy}"
