"""Every --data-path exists on every node and can be read."""

from __future__ import annotations

from allranks.text import join_names

from ..compare import Findings, Nodes, advise, by_item, denied_if, fail_if, lack, nodes_with, remote, unknown, values_of
from ..typed_facts import Request

ID = "data_paths"
GROUP = "data"
LEVEL = "quick"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """missing-file, permission-denied; `unknown` where the file system gave no answer."""
    silent = nodes_with(facts_by_node, lambda facts: facts.error("data"))  # a mount whose server is down
    if silent and request.asked.data_paths:
        message = f"could not look at {', '.join(request.asked.data_paths)} on {join_names(silent)}"
        message += f": {facts_by_node[silent[0]].error('data')}"
        yield unknown(ID, silent, message, f"look: {remote(silent[0], 'mount')}")
    is_bare = not request.asked.wrap  # a container may have it mounted elsewhere
    paths = by_item(values_of(facts_by_node, lambda facts: {one.path: one for one in facts.data}))
    for path, by_node in paths.items():
        absent = nodes_with(by_node, lambda one: not one.exists)
        closed = nodes_with(by_node, lambda one: one.exists and not one.readable)
        if absent:
            fine = [node for node in by_node if node not in absent and node not in closed]
            parent = path.rstrip("/").rpartition("/")[0] or "/"
            remedy = advise("mount or copy it there", absent[0], "ls -ld", parent)
            yield fail_if(is_bare, "missing-file", absent, lack(absent, fine, path), remedy)
        if closed:
            yield denied_if(is_bare, closed, path)
