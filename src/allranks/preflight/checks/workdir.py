"""The working directory exists on every node and may be entered."""

from __future__ import annotations

import shlex

from allranks.findings import Finding
from allranks.text import join_names

from ..compare import Nodes, lack, parts, place, remote
from ..host import Request

ID = "workdir"
GROUP = "code"
LEVEL = "quick"


def judge(request: Request, facts_by_node: Nodes) -> list[Finding]:
    """remote-path-missing where it is absent, permission-denied where it can't be entered."""
    workdirs = parts(facts_by_node, "workdir")
    absent = [n for n, w in workdirs.items() if not w.get("exists")]
    closed = [n for n, w in workdirs.items() if w.get("exists") and not w.get("cwd_ok")]
    fine = [n for n in workdirs if n not in absent and n not in closed]
    findings = []
    if absent:
        path = str(workdirs[absent[0]].get("path"))
        message = lack(absent, fine, f"directory {path}")
        findings.append(Finding("remote-path-missing", "fail", message, copy_remedy(path, absent, fine), place(absent)))
    if closed:
        path = str(workdirs[closed[0]].get("path"))
        message = f"{path} can't be entered by your user on {join_names(closed)}"
        remedy = remote(closed[0], "ls", "-ld", path)
        findings.append(Finding("permission-denied", "fail", message, remedy, place(closed)))
    return findings


def copy_remedy(path: str, absent: list[str], fine: list[str]) -> str:
    """One rsync line for the first node that lacks it; where all do, the path is the thing to correct."""
    if not fine:
        return "name a directory that the nodes have with --workdir, or copy it to them"
    quoted = shlex.quote(path.rstrip("/") + "/")
    more = "" if len(absent) == 1 else f" (and so for {join_names(absent[1:])})"
    return f"{remote(absent[0], 'mkdir', '-p', path)} && rsync -a {quoted} {absent[0]}:{quoted}{more}"
