"""From the facts of all nodes to findings and a table: which node passes which check."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from allranks.findings import Finding, typed_here
from allranks.text import join_names

from .check import LEVELS, Check
from .compare import Facts, Nodes, by_value, nodes_of, place
from .host import Request

ORDER = {"fail": 0, "unknown": 1, "warn": 2, "ok": 3, "skipped": 4}


def of_level(checks: Iterable[Check], level: str, only: Sequence[str] = ()) -> list[Check]:
    """The checks of a level (a full look has the quick ones too), or only those named."""
    if only:
        return [c for c in checks if c.name in only]
    return [c for c in checks if LEVELS.index(c.level) <= LEVELS.index(level)]


def judge(request: Request, facts_by_node: Nodes, checks: Iterable[Check], allow: Sequence[str] = ()) -> list[Finding]:
    """All findings, each with its check's name; an ok check says nothing. Failures come first.

    `request` is what the nodes were asked to look at, with "nproc" (None: auto), "virtual" (all nodes are
    on this machine) and, where known, "local" (names of nodes that are this machine), "slots" ({node: number}),
    "wrap" and "launcher". What `allow` names (a check or the id of a finding) is a warning at most.
    """
    local = tuple(facts_by_node) if request.get("virtual") else tuple(request.get("local") or ())
    findings: list[Finding] = []
    for check in checks:
        findings += [typed_here(_allowed(f, allow), local) for f in _judge_one(check, request, facts_by_node)]
    return sorted(findings, key=lambda f: 0 if f.status == "fail" else 1)


def _judge_one(check: Check, request: Request, facts_by_node: Nodes) -> list[Finding]:
    if request.get("virtual") and check.between_machines:
        return []
    nodes = dict(facts_by_node)
    if request.get("virtual") and check.name != "slots":
        nodes = dict(list(nodes.items())[:1])  # one machine: one finding
    blind = _blind(check, nodes)
    findings = _could_not_look(check, blind)
    findings += check.judge(request, {n: f for n, f in nodes.items() if n not in blind})
    return [dataclasses.replace(f, check=check.name) for f in findings]


def _blind(check: Check, nodes: Nodes) -> dict[str, str]:
    """Nodes on which the check could not look, with the reason. A check that only reads facts sees to that itself."""
    reasons = {}
    for node, facts in nodes.items():
        evidence = facts.get(check.name)
        if check.collect is not None and isinstance(evidence, Mapping) and "error" in evidence:
            reasons[node] = str(evidence["error"])
    return reasons


def _could_not_look(check: Check, reasons: Mapping[str, str]) -> list[Finding]:
    findings = []
    for reason, where in by_value(reasons).items():
        findings.append(
            Finding(check.name, "unknown", f"{join_names(where)}: could not look: {reason}", "", place(where))
        )
    return findings


def _allowed(finding: Finding, allow: Sequence[str]) -> Finding:
    if finding.status == "fail" and (finding.id in allow or finding.check in allow):
        return dataclasses.replace(finding, status="warn")
    return finding


# -- the table -------------------------------------------------------------------------------------


def table(
    request: Request, facts: Nodes, checks: Iterable[Check], findings: Sequence[Finding]
) -> dict[str, dict[str, str]]:
    """{check: {node: status}}: the worst finding about a node, else ok where it was looked at."""
    rows: dict[str, dict[str, str]] = {}
    for check in checks:
        of_check = [f for f in findings if f.check == check.name]
        silent = bool(request.get("virtual")) and check.between_machines
        rows[check.name] = {node: "skipped" if silent else _cell(check, node, facts[node], of_check) for node in facts}
    return rows


def _cell(check: Check, node: str, facts: Facts, findings: Sequence[Finding]) -> str:
    about = [f.status for f in findings if node in nodes_of(f.where)]
    if about:
        return min(about, key=ORDER.__getitem__)
    return "skipped" if check.needs and facts.get(check.needs) is None else "ok"
