"""The summary of a run to paste into an issue or a mail: Markdown, at most 60 lines (pure).

What comes from logs, programs and machines stands in code spans and fences, so that it stays text.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from allranks.findings import Verdict, explain_command
from allranks.protocol.codec import encode
from allranks.runs.documents import ResultDocument, RunDocument, SuiteResult
from allranks.text import count_of, cut, format_ranks

from .ledgerwords import goodput_line, goodput_words
from .machines import facts_of, machine_groups, scheduler
from .page import findings_of, test_level
from .record import Record
from .redact import Hidden, hidden_words

MOST = 60  # lines
LONGEST = 300  # characters of a line
GROUPS = 6  # of nodes that are alike
FINDINGS = 6
TESTS = 5
WORDS = {"done": "done", "failed": "FAILED", "stopped": "stopped", "orphaned": "its controller has died"}
ENDED = {"ok": "passed", "warn": "warned", "fail": "FAILED"}
OF_A_NODE = ("system", "GPUs", "driver", "Python", "torch", "network", "RDMA ports")


def summary(record: Record, hidden: Sequence[Hidden], files: int) -> str:
    """Write the summary; `record` is without secrets, `files` is how many the bundle has."""
    result = record.result or ResultDocument()
    verdict = record.verdict
    ended = f"**{WORDS.get(record.state, record.state)}**"
    if record.result is not None:
        ended += f" (exit {result.exit})"
    lines = [f"# allranks: {code(record.name)}", "", *_verdict(ended, verdict)]
    lines += ["", "## Run", "", *_run(record, result), "", "## Nodes", "", *_nodes(record)]
    lines += [*_findings(result, verdict), *_tests(record.tests), "", "## This bundle", "", *_bundle(hidden, files)]
    return "\n".join(lines[:MOST]) + "\n"


def code(value: object, longest: int = LONGEST) -> str:
    """Write a code span: one line, whatever is in it."""
    return f"`{_line(value, longest)}`"


def _line(value: object, longest: int = LONGEST) -> str:
    return cut(" ".join(str(value).split()).replace("`", "'"), longest) or " "


def _fence(lines: Sequence[str], most: int) -> list[str]:
    if not lines:
        return []
    return ["```", *(_line(line) for line in lines[:most]), "```"]


def _verdict(ended: str, verdict: Verdict) -> list[str]:
    if verdict.finding.status != "fail":
        return [f"{ended}: {code(verdict.finding.message or 'no verdict')}"]
    confidence = f", confidence {verdict.confidence_text}" if verdict.confidence_text else ""
    lines = [f"{ended}, cause {code(verdict.cause, 80)}{confidence}", "", code(verdict.finding.message), ""]
    place = encode(verdict.finding.where)
    if place:
        where = ", ".join(f"{name} {_line(value, 80)}" for name, value in place.items())
        lines.append(f"- culprit: {code(where)}")
    if verdict.victims:
        lines.append(f"- victims: {code(format_ranks(verdict.victims))}")
    if verdict.finding.evidence:
        lines += ["", *_fence(verdict.finding.evidence, 3)]
    remedy = [line for line in verdict.finding.remedy.splitlines() if line.strip()]
    if remedy:
        lines += ["", "Fix:", *_fence(remedy, 6)]
    more = explain_command(verdict.cause)
    if more:
        lines += ["", f"More: {code(more)}"]
    return lines


def _run(record: Record, result: ResultDocument) -> list[str]:
    run = record.run or RunDocument()
    world_size = record.status.world_size
    ranks = "ranks unknown" if world_size is None else count_of(world_size, "rank")
    nodes = count_of(len(run.nodes), "node")
    attempts = count_of(len(result.attempts), "attempt")
    launcher = code(run.launcher, 40)
    seconds = "time unknown" if result.timing.total is None else f"{result.timing.total:g} s"
    versions = ", ".join(f"{name} {_line(version, 60)}" for name, version in run.versions.items())
    goodput = goodput_words(result.goodput)
    if result.time_ledger is not None:
        goodput = goodput_line(result.time_ledger, len(result.attempts)) or goodput
    roles = ", ".join(
        f"{name} on {count_of(len(role.nodes), 'node')} {role.outcome}" for name, role in result.roles.items()
    )
    return [
        f"- {ranks} on {nodes}, launcher {launcher}, {attempts}, {seconds}",
        f"- goodput: {goodput}",
        *([f"- roles: {code(roles)}"] if roles else []),
        f"- command: {code(shlex.join(run.command))}",
        f"- scheduler: {code(scheduler(run, record.preflight))}",
        f"- launched with: {code(versions)}",
    ]


def _nodes(record: Record) -> list[str]:
    groups = machine_groups(facts_of(record.preflight))
    lines = []
    for names, rows in groups[:GROUPS]:
        parts = [f"{name} {code(value, 90)}" for name, value in rows if name in OF_A_NODE]
        lines.append(f"- {code(names, 80)}: {'; '.join(parts)}")
    if len(groups) > GROUPS:
        more = count_of(len(groups) - GROUPS, "more group", "more groups")
        lines.append(f"- and {more} of nodes, see run/evidence/preflight.json")
    return lines or ["- not looked at (no evidence/preflight.json)"]


def _findings(result: ResultDocument, verdict: Verdict) -> list[str]:
    findings = findings_of(result.findings, verdict.finding.message)
    if not findings:
        return []
    lines = [f"- {finding.status}: {code(finding.message)}" for finding in findings[:FINDINGS]]
    if len(findings) > FINDINGS:
        lines.append(f"- and {len(findings) - FINDINGS} more")
    return ["", "## Findings", "", *lines]


def _tests(tests: Sequence[SuiteResult]) -> list[str]:
    if not tests:
        return []
    lines = [f"- {_line(one.suite, 20)} {ENDED[test_level(one)]}: {code(one.run, 80)}" for one in tests[:TESTS]]
    return ["", "## Tests and checks of these nodes", "", *lines]


def _bundle(hidden: Sequence[Hidden], files: int) -> list[str]:
    secrets = "no secrets were found"
    if hidden:
        secrets = f"{hidden_words(hidden)}: see redactions.json"
    return [
        f"- {count_of(files, 'file')}. report.html is the page. Of large logs only beginning and end are here",
        f"- {secrets}",
    ]
