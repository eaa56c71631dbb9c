"""The node can be looked at: the prelude runs and leaves an environment."""

from __future__ import annotations

from typing import Any, List, Mapping

from allranks.findings import Finding

from ..compare import Nodes, by_value, names, part_error, place

ID = "look"
GROUP = "host"
LEVEL = "quick"
NEEDS = "clock"


def judge(request: Mapping[str, Any], facts_by_node: Nodes) -> List[Finding]:
    """remote-path-missing, as where a module or an environment that the prelude names is absent."""
    errors = {n: error for n, f in facts_by_node.items() for error in [part_error(f, "look")] if error}
    found = []
    for error, nodes in by_value(errors).items():
        remedy = "try the --prelude by hand on the node"
        found.append(Finding("remote-path-missing", "fail", f"{names(nodes)}: {error}", remedy, place(nodes)))
    return found
