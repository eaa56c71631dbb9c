"""The node can be looked at: the prelude runs and leaves an environment."""

from __future__ import annotations

from typing import Dict, List, Sequence

from allranks.findings import Finding
from allranks.settings.secrets import redact_text
from allranks.text import join_names

from ..compare import Nodes, by_value, part, part_error, place
from ..host import Request

ID = "look"
GROUP = "host"
LEVEL = "quick"
NEEDS = "clock"


def judge(request: Request, facts_by_node: Nodes) -> List[Finding]:
    """remote-path-missing, as where a module or an environment that the prelude names is absent."""
    errors = {n: error for n, f in facts_by_node.items() for error in [part_error(f, "look")] if error}
    findings = [failed_look(nodes, error) for error, nodes in by_value(errors).items()]
    remarks: Dict[str, List[str]] = {}
    for node, facts in facts_by_node.items():
        for remark in part(facts, "prelude").get("remarks") or ():
            remarks.setdefault(str(remark), []).append(node)
    return findings + [_went_on(nodes, remark) for remark, nodes in remarks.items()]


def failed_look(nodes: Sequence[str], error: str) -> Finding:
    """remote-path-missing: `error` is a sentence, and below it the last words of the prelude."""
    sentence, _, output = redact_text(error).partition("\n")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = f": {lines[-1][:300]}" if lines else ""
    remedy = "try the --prelude by hand in bash on the node; `|| true` behind a command lets it fail"
    message = f"{join_names(nodes)}: {sentence}{last}"
    return Finding("remote-path-missing", "fail", message, remedy, place(nodes), tuple(lines[-3:]))


def _went_on(nodes: Sequence[str], remark: str) -> Finding:
    sentence = redact_text(remark).partition("\n")[0]
    message = f"{join_names(nodes)}: {sentence}, by a condition at its end: it counts as done"
    return Finding(ID, "warn", message, "let the file end with `true`", place(nodes))
