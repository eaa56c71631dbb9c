"""The node can be looked at: the prelude runs and leaves an environment."""

from __future__ import annotations

from typing import Sequence

from allranks.findings import Finding
from allranks.settings.secrets import redact_text
from allranks.text import join_names, with_reason

from ..compare import Findings, Nodes, by_entry, by_value, fail, having, values_of, warn
from ..typed_facts import Request

ID = "look"
GROUP = "host"
LEVEL = "quick"
NEEDS = "clock"


def judge(request: Request, facts_by_node: Nodes) -> Findings:
    """remote-path-missing, as where a module or an environment that the prelude names is absent."""
    errors = having(facts_by_node, lambda facts: facts.error("look"))
    for error, nodes in by_value(errors).items():
        yield failed_look(nodes, error)
    for remark, nodes in by_entry(values_of(facts_by_node, lambda facts: facts.remarks)).items():
        sentence = redact_text(remark).partition("\n")[0]
        message = f"{join_names(nodes)}: {sentence} (by a condition at its end, so it counts as done)"
        yield warn(ID, nodes, message, "let the file end with `true`")


def failed_look(nodes: Sequence[str], error: str) -> Finding:
    """remote-path-missing: `error` is a sentence, and below it the last words of the prelude."""
    sentence, _, output = redact_text(error).partition("\n")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    message = with_reason(f"{join_names(nodes)}: {sentence}", "".join(lines[-1:])[:300])
    remedy = "try the --prelude by hand in bash on the node (`|| true` behind a command lets it fail)"
    return fail("remote-path-missing", nodes, message, remedy, lines[-3:])
