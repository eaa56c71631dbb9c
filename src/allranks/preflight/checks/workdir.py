"""The working directory exists on every node and may be entered."""

from __future__ import annotations

import shlex
from typing import List

from ..compare import Findings, Nodes, alike, and_so_for, denied_if, fail, lack, nodes_with, or_ship, remote, those
from ..typed_facts import Request

ID = "workdir"
GROUP = "code"
LEVEL = "quick"
NO_NODE_HAS_IT = (
    "`run --sync` ships this directory to the nodes. "
    "Else copy it to them, or name one that they have, as `--workdir /tmp`"
)


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """remote-path-missing where it is absent, permission-denied where it can't be entered."""
    workdirs = {node: facts.workdir for node, facts in facts_by_node.items() if facts.has_read("workdir")}
    present = those(workdirs, lambda workdir: workdir.exists)
    fine = nodes_with(present, lambda workdir: workdir.cwd_ok)
    for path, absent in alike(workdirs, lambda workdir: "" if workdir.exists else workdir.path).items():
        message = lack(absent, fine, f"directory {path}")
        yield fail("remote-path-missing", absent, message, copy_remedy(request, path, absent, bool(fine)))
    for path, closed in alike(present, lambda workdir: "" if workdir.cwd_ok else workdir.path).items():
        yield denied_if(True, closed, path, "entered")


def copy_remedy(request: Request, path: str, absent: List[str], is_elsewhere: bool) -> str:
    """One rsync line for the first node that lacks it; where all do, the path is the thing to correct."""
    if not is_elsewhere:
        if request.asked.spec.get("workdir"):
            return "correct --workdir, or make the directory on the nodes"
        return NO_NODE_HAS_IT
    quoted = shlex.quote(path.rstrip("/") + "/")
    copy = f"rsync -a {quoted} {absent[0]}:{quoted}{and_so_for(absent[1:])}"
    return or_ship(request, f"{remote(absent[0], 'mkdir -p', path)} && {copy}")
