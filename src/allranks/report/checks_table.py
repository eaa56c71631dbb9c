"""What a check found, as text: a table nodes × checks, then each finding with its remedy (no IO)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allranks.findings import Finding
from allranks.preflight.check import Check
from allranks.preflight.judge import ORDER
from allranks.preflight.rank_network import NetworkSetting
from allranks.protocol.codec import omit_empty
from allranks.text import count_of, group, join_names

from .terminal import BAD, DIM, GOOD, UNSURE, WARN, paint

Rows = Mapping[str, Mapping[str, str]]

WORDS = {"fail": "FAIL", "warn": "warn", "unknown": "?", "ok": "ok", "skipped": "-"}
STYLES = {"fail": BAD, "warn": WARN, "unknown": UNSURE, "ok": GOOD, "skipped": DIM}
# What a count of checks says of each status, the worst first.
COUNTED = {"fail": "failed", "warn": "warned", "unknown": "could not look", "ok": "ok", "skipped": "skipped"}
WIDEST_NAME = 16


def counts(findings: Sequence[Finding], rows: Rows) -> str:
    """Count every check once, by the worst that it says: `38 checks on 4 nodes: 1 failed, 2 warned, 35 ok`."""
    unreached = len({f.where.node for f in findings if f.check == "reached"})
    looked_at = len(next(iter(rows.values()), {}))
    nodes = count_of(looked_at, "node")
    if unreached:
        nodes = f"{looked_at} of {count_of(looked_at + unreached, 'node')}"
    findings_by_check = group(findings, lambda finding: finding.check or finding.id)
    numbers = dict.fromkeys(COUNTED, 0)
    for name, row in rows.items():  # of no node at all a check was skipped
        statuses = [*row.values(), *(finding.status for finding in findings_by_check.get(name, []))]
        numbers[min(statuses, key=ORDER.__getitem__, default="skipped")] += 1
    words = ", ".join(f"{numbers[status]} {word}" for status, word in COUNTED.items() if numbers[status])
    if rows and numbers["ok"] == len(rows):
        words = "all ok"
    return f"{count_of(len(rows), 'check')} on {nodes}: {words}"


def table_lines(rows: Rows, checks: Mapping[str, Check], width: int, verbose: bool, colour: bool) -> list[str]:
    """Write a row for each check that is not ok (`verbose`: for all), with a column for each node where that fits."""
    shown = {name: row for name, row in rows.items() if verbose or not set(row.values()) <= {"ok", "skipped"}}
    if not shown:
        return []
    first = max(len(name) for name in shown)
    nodes = list(next(iter(shown.values())))
    columns = [max(4, min(WIDEST_NAME, len(node))) for node in nodes]
    if first + 2 + sum(c + 2 for c in columns) <= width:
        head = " " * (first + 2) + "  ".join(f"{n[:WIDEST_NAME]:<{c}}" for n, c in zip(nodes, columns, strict=True))
        lines = [head.rstrip()]
        for name, row in shown.items():
            cells = [_cell(row[n], c, colour) for n, c in zip(nodes, columns, strict=True)]
            lines.append(f"{name:<{first}}  " + "  ".join(cells).rstrip())
        return lines
    return [f"{name:<{first}}  {_summary(row, colour)}" for name, row in shown.items()]


def _cell(status: str, width: int, colour: bool) -> str:
    return paint(f"{WORDS[status]:<{width}}", STYLES[status], colour)


def _summary(row: Mapping[str, str], colour: bool) -> str:
    """For many nodes: those that are not ok by name, the others counted."""
    groups = group(row, row.__getitem__)
    parts = []
    for status in sorted(groups, key=ORDER.__getitem__):
        nodes = groups[status]
        word = _cell(status, 0, colour)
        many = status in ("ok", "skipped") or len(nodes) > 8
        parts.append(f"{len(nodes)} {word}" if many else f"{word} {', '.join(nodes)}")
    return " · ".join(parts)


def finding_lines(findings: Sequence[Finding], colour: bool, verbose: bool) -> list[str]:
    """Write each finding with its remedy; checks that could not look come last, in one line without `verbose`."""
    lines = []
    for finding in sorted(findings, key=lambda f: ("fail", "warn", "unknown").index(f.status)):
        if finding.status == "unknown" and not verbose:
            continue
        lines.append(f"{_cell(finding.status, 4, colour)} {finding.message}  [{finding.check or finding.id}]")
        if finding.remedy:
            lines.append(f"     -> {finding.remedy}")
        if verbose:
            lines += [f"        {line}" for line in finding.evidence]
    unknown = ", ".join(dict.fromkeys(f.check or f.id for f in findings if f.status == "unknown"))
    if unknown and not verbose:
        lines.append(f"{_cell('unknown', 4, colour)} could not look: {unknown} (-v says more)")
    return lines


def setting_lines(explained: Mapping[str, Sequence[Sequence[str]]]) -> list[str]:
    """Write the network settings of the ranks, once for all nodes that have the same."""
    lines = []
    for nodes, rows in grouped(explained):
        lines.append(f"network of the ranks on {nodes}")
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        for row in rows:
            cells = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False))
            lines.append(f"  {cells}  {row[3]}".rstrip())
    return lines


def grouped(explained: Mapping[str, Sequence[Sequence[str]]]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """(node names, rows) for nodes with equal rows."""
    groups = group(explained, lambda node: tuple(tuple(row) for row in explained[node]))
    return [(join_names(nodes) if len(nodes) > 1 else nodes[0], list(rows)) for rows, nodes in groups.items()]


@omit_empty("role")
class CheckReport(NamedTuple):
    """What `check --json` prints; `covered` says which pairs were tried, `settings` are those of the ranks by node.

    `role`: the part of a run whose nodes these are. Each role has a document of its own.
    """

    run: str
    directory: str | None
    ok: bool
    findings: Sequence[Finding]
    table: Rows
    covered: str | None
    settings: Mapping[str, Sequence[NetworkSetting]]
    role: str = ""
