"""The script, or the program, is there on every node that has the working directory."""

from __future__ import annotations

import shlex

from allranks.findings import Finding, Status
from allranks.text import join_names

from ..compare import Facts, Nodes, lack, part, place, remote
from ..host import Record, Request

ID = "script"
GROUP = "code"
LEVEL = "quick"


def judge(request: Request, facts_by_node: Nodes) -> list[Finding]:
    """remote-path-missing for a script or program that is absent, permission-denied for an unreadable one."""
    scripts = {n: part(f, "script") for n, f in facts_by_node.items() if _can_judge(f)}
    absent = [n for n, s in scripts.items() if s.get("exists") is False]
    fine = [n for n in scripts if n not in absent]
    # Inside a container or another wrapper the path may well exist.
    status: Status = "warn" if request.get("wrap") else "fail"
    findings = []
    if absent:
        script = scripts[absent[0]]
        what = str(script.get("path") or script.get("name"))
        if script.get("kind") == "program" and "/" not in str(script.get("name")):
            what += " on PATH"
        message = lack(absent, fine, what)
        remedy = _remedy(script, absent, fine)
        findings.append(Finding("remote-path-missing", status, message, remedy, place(absent)))
    closed = [n for n in fine if scripts[n].get("readable") is False]
    if closed:
        path = str(scripts[closed[0]].get("path"))
        message = f"{path} can't be read by your user on {join_names(closed)}"
        remedy = remote(closed[0], "ls", "-l", path)
        findings.append(Finding("permission-denied", "fail", message, remedy, place(closed)))
    return findings


def _can_judge(facts: Facts) -> bool:
    """Where the working directory is missing, that is the finding."""
    workdir = part(facts, "workdir")
    return bool(part(facts, "script")) and (not workdir or bool(workdir.get("exists")))


def _remedy(script: Record, absent: list[str], fine: list[str]) -> str:
    path = str(script.get("path") or "")
    if script.get("kind") == "program":
        return (
            f"install it there, or set PATH with --prelude; look: {remote(absent[0], 'which', str(script.get('name')))}"
        )
    if not fine:
        return "check the path of the script; a relative one is looked up in --workdir"
    more = "" if len(absent) == 1 else f" (and so for {join_names(absent[1:])})"
    return f"rsync -a {shlex.quote(path)} {absent[0]}:{shlex.quote(path)}{more}"
