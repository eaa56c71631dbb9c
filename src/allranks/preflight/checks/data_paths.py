"""Every --data-path exists on every node and can be read."""

from __future__ import annotations

from typing import Dict, List, Mapping, Tuple

from allranks.findings import Finding, Status
from allranks.text import join_names

from ..compare import Nodes, lack, place, remote
from ..host import Request

ID = "data_paths"
GROUP = "data"
LEVEL = "quick"


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """missing-file, permission-denied; `unknown` where the file system gave no answer."""
    status: Status = "warn" if request.get("wrap") else "fail"  # a container may have it mounted elsewhere
    findings = _silent(request, facts_by_node)
    for path, by_node in _by_path(facts_by_node).items():
        absent = [n for n, (exists, _) in by_node.items() if not exists]
        closed = [n for n, (exists, readable) in by_node.items() if exists and not readable]
        fine = [n for n in by_node if n not in absent and n not in closed]
        if absent:
            message = lack(absent, fine, path)
            remedy = f"mount or copy it there; look: {remote(absent[0], 'ls', '-ld', _parent(path))}"
            findings.append(Finding("missing-file", status, message, remedy, place(absent)))
        if closed:
            message = f"{path} can't be read by your user on {join_names(closed)}"
            remedy = remote(closed[0], "ls", "-ld", path)
            findings.append(Finding("permission-denied", status, message, remedy, place(closed)))
    return findings


def _by_path(facts_by_node: Nodes) -> Dict[str, Dict[str, Tuple[bool, bool]]]:
    states: Dict[str, Dict[str, Tuple[bool, bool]]] = {}
    for node, facts in facts_by_node.items():
        data = facts.get("data")
        for one in data if isinstance(data, list) else ():
            state = (bool(one.get("exists")), bool(one.get("readable")))
            states.setdefault(str(one.get("path")), {})[node] = state
    return states


def _silent(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """A path on a mount whose server is gone blocks."""
    silent = {n: f["data"] for n, f in facts_by_node.items() if isinstance(f.get("data"), Mapping)}
    paths = ", ".join(str(p) for p in request.get("data_paths") or ())
    if not silent or not paths:
        return []
    nodes = list(silent)
    message = f"{join_names(nodes)}: could not look at {paths}: {silent[nodes[0]].get('error')}"
    return [Finding(ID, "unknown", message, f"look: {remote(nodes[0], 'mount')}", place(nodes))]


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or "/"
