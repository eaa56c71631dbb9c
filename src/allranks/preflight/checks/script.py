"""The script, or the program, is there on every node that has the working directory, and a script compiles."""

from __future__ import annotations

import difflib
import shlex
from typing import List

from allranks.protocol.facts import TargetFacts

from ..compare import Findings, Nodes, advise, and_so_for, denied_if, fail_if, lack, nodes_with, or_ship
from ..typed_facts import Request

ID = "script"
GROUP = "code"
LEVEL = "quick"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """remote-path-missing for a script or program that is absent, permission-denied for an unreadable one.

    program-exception for a script that the training interpreter cannot compile."""
    scripts = {}
    for node, facts in facts_by_node.items():  # where the working directory is missing, that is the finding
        if facts.has_read("script") and (facts.workdir.exists or not facts.has_read("workdir")):
            scripts[node] = facts.script
    absent = nodes_with(scripts, lambda script: script.exists is False)
    fine = [node for node in scripts if node not in absent]
    if absent:
        script = scripts[absent[0]]
        what = script.path or script.name
        if script.kind == "program" and "/" not in script.name:
            what += " on PATH"
        elif script.kind == "program" and script.beside:
            what += " that may be executed"
        remedy = _remedy(request, script, absent, bool(fine))
        is_bare = not request.asked.wrap  # inside a container the path may well exist
        yield fail_if(is_bare, "remote-path-missing", absent, lack(absent, fine, what), remedy)
    closed = [node for node in fine if scripts[node].readable is False]
    if closed:
        yield denied_if(True, closed, scripts[closed[0]].path)
    broken = [node for node in fine if facts_by_node[node].interpreter.syntax]
    if broken:
        interpreter = facts_by_node[broken[0]].interpreter
        what = f"{scripts[broken[0]].path} does not compile: {interpreter.syntax} (Python {interpreter.version})"
        is_bare = not request.asked.wrap  # a container may have a newer Python
        yield fail_if(is_bare, "program-exception", broken, what, "correct that line")


def _remedy(request: Request, script: TargetFacts, absent: List[str], is_elsewhere: bool) -> str:
    if len(script.path.rpartition("/")[2].split()) > 1:
        return "leave out the quotes around the command: they make one word of it and its arguments"
    if script.kind == "program" and script.beside:
        started = f"bash {script.path}" if script.path.endswith(".sh") else f"./{script.path}"
        if "/" not in script.name:
            return f"{script.path} lies in the working directory: start it as `{started}`"
        by = f", or start it as `{started}`" if script.path.endswith(".sh") else ""
        return f"`chmod +x {shlex.quote(script.path)}`{by}"
    if script.kind == "program" and "/" not in script.name:
        return advise("install it there, or set PATH with --prelude", absent[0], "which", script.name)
    if not is_elsewhere:
        directory, _, name = script.path.rpartition("/")
        meant = difflib.get_close_matches(name, script.beside, n=1)
        if meant:
            return f"correct the name of the script: {directory or '/'} has {meant[0]}"
        return or_ship(request, "check the path of the script (a relative one is looked up in --workdir)")
    path = shlex.quote(script.path)
    return or_ship(request, f"rsync -a {path} {absent[0]}:{path}{and_so_for(absent[1:])}")
