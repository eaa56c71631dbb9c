"""From the facts of all nodes to findings and a table: which node passes which check."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence

from allranks.findings import Finding, Logins, typed_here
from allranks.protocol.codec import DecodeError
from allranks.protocol.jsontext import Json
from allranks.text import error_line, join_names

from .check import LEVELS, Check
from .compare import Nodes, alike, nodes_of, those, unknown
from .typed_facts import Facts, Request

Documents = Mapping[str, Mapping[str, Json]]
ORDER = {"fail": 0, "unknown": 1, "warn": 2, "ok": 3, "skipped": 4}


def of_level(checks: Iterable[Check], level: str, only: Sequence[str] = ()) -> list[Check]:
    """Choose the checks of a level (the full level has the quick ones too), or only those named."""
    if only:
        return [c for c in checks if c.name in only]
    return [c for c in checks if LEVELS.index(c.level) <= LEVELS.index(level)]


HARDWARE_GROUPS = ("gpu", "network")


def hardware_checks(checks: Iterable[Check]) -> frozenset[str]:
    """Return the ids of checks whose failure is a fault of the machine, not of what is set or installed there."""
    return frozenset(check.name for check in checks if check.group in HARDWARE_GROUPS)


def judge(
    request: Mapping[str, Json], documents: Documents, checks: Iterable[Check], allow: Sequence[str] = ()
) -> list[Finding]:
    """All findings, each with its check's name; an ok check says nothing. Failures come first.

    `request` is what was asked of the nodes, with "nproc" (None: auto), "virtual" (all nodes are on this machine)
    and, where known, "local" (names of nodes that are this machine), "ssh" ({node: what ssh is given}), "slots" ({node:
    number}), "wrap" and "launcher".
    `documents` are the facts by node. What `allow` names (a check or the id of a finding) is a warning at most.
    """
    asked = Request(request)
    nodes = {node: Facts(document) for node, document in documents.items()}
    local = frozenset(nodes if asked.asked.virtual else asked.asked.local)
    logins = Logins(local, asked.asked.ssh, asked.asked.spec.get("slurm") is True)
    findings: list[Finding] = []
    for check in checks:
        for finding in _judge_one(check, asked, nodes):
            is_allowed = finding.status == "fail" and (finding.id in allow or check.name in allow)
            status = "warn" if is_allowed else finding.status
            kept = finding._replace(status=status, check=check.name)
            findings.append(typed_here(kept, logins))
    return sorted(findings, key=lambda finding: finding.status != "fail")


def _judge_one(check: Check, request: Request, facts_by_node: Nodes) -> Iterator[Finding]:
    nodes = dict(facts_by_node)
    if request.asked.virtual:
        if check.between_machines:
            return
        if check.name != "slots":
            nodes = dict(list(nodes.items())[:1])  # one machine: one finding
    if check.collect is not None:  # a check that only reads facts sees to their errors itself
        for reason, without in alike(nodes, lambda facts: facts.error(check.name)).items():
            yield unknown(check.name, without, f"could not look at {join_names(without)}: {reason}")
        nodes = those(nodes, lambda facts: not facts.error(check.name))
        if not nodes:
            return
    try:
        yield from list(check.judge(request, nodes))
    except DecodeError as error:
        yield unknown(check.name, list(nodes), f"could not read what the nodes have sent: {error}")
    except Exception as error:  # a value that no node of ours sends, or a defect of the check, which may be another's
        place = traceback.extract_tb(error.__traceback__)[-1]
        file = place.filename.rpartition("/")[2]
        why = f"{type(error).__name__}: {error_line(error)} ({file}:{place.lineno})"
        yield unknown(check.name, list(nodes), f"could not judge what the nodes have sent: {why}")


# -- the table -------------------------------------------------------------------------------------


def table(
    request: Mapping[str, Json], documents: Documents, checks: Iterable[Check], findings: Sequence[Finding]
) -> dict[str, dict[str, str]]:
    """{check: {node: status}}: the worst finding about a node, else ok where it was looked at."""
    rows: dict[str, dict[str, str]] = {}
    for check in checks:
        of_check = [f for f in findings if f.check == check.name]
        is_silent = bool(request.get("virtual")) and check.between_machines
        row = {}
        for node, facts in documents.items():
            statuses = [f.status for f in of_check if node in nodes_of(f.where)]
            if is_silent:
                row[node] = "skipped"
            elif statuses:
                row[node] = min(statuses, key=ORDER.__getitem__)
            else:
                row[node] = "skipped" if check.needs and facts.get(check.needs) is None else "ok"
        rows[check.name] = row
    return rows
