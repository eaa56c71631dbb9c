"""allranks check: look at all nodes, compare them, say what is wrong before a run does."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from allranks import exitcodes
from allranks.cluster import Cluster
from allranks.engines.dry_run import describe_check, describe_checks
from allranks.engines.reachable_nodes import find_cluster, reached
from allranks.errors import UsageError
from allranks.findings import Finding
from allranks.gang.inspection import judge_evidence, look_at_nodes
from allranks.gang.plugins import all_checks
from allranks.gang.roles import parts_of
from allranks.gang.transport import Transport
from allranks.preflight.check import Check
from allranks.preflight.judge import hardware_checks, of_level, table
from allranks.preflight.rank_network import explain
from allranks.protocol.codec import document_line
from allranks.protocol.plan_facts import read_facts
from allranks.report import can_write_pages
from allranks.report.checks_table import CheckReport, counts, finding_lines, grouped, setting_lines, table_lines
from allranks.report.terminal import shows_colour
from allranks.runs import preflight
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import PreflightDocument
from allranks.runs.nodeledger import NodeRecord, add_records, blame, ledger_file, records_of
from allranks.settings import RunSpec
from allranks.settings.document import from_document
from allranks.text import count_of

from .declare import Given
from .streams import ProgressLine
from .target import resolve_options, say_notes, unknown_name


class Printing(NamedTuple):
    """How much a check or a test prints: its document, what failed, or all that people want to see."""

    as_json: bool
    quiet: bool
    verbose: bool = False
    role: str = ""


def command(
    typed: Given,
    from_: str | None,
    list_: bool,
    config: str | None,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    json_: bool,
) -> int:
    """Look at nodes, or at saved evidence, or list the checks."""
    if list_:
        click.echo(describe_checks(all_checks().values(), json_))
        return exitcodes.DONE
    printing = Printing(json_, quiet, verbose)
    resolved = resolve_options(typed, config, keeps_roles=True)
    spec = resolved.spec
    checks = choose(spec)
    if from_ is not None:
        evidence = preflight.read(Path(from_))
        names = spec.preflight.only or evidence.checks or list(all_checks())
        return close(evidence, [c for c in all_checks().values() if c.name in names], spec, None, printing)
    cluster = find_cluster(resolved.spec)
    say_notes(resolved)
    parts = parts_of(spec, cluster)
    if dry_run:
        for part in parts:
            click.echo(describe_check(part.spec, part.cluster, checks, json_))
        return exitcodes.DONE
    code = exitcodes.DONE
    for part in parts:
        with reached(part.spec, part.cluster) as transport:
            printed = printing._replace(role=part.role.name)
            code = max(code, look(part.spec, part.cluster, checks, printed, transport))
    return code


def choose(spec: RunSpec) -> list[Check]:
    """Choose the checks of the level, or those named; raise UsageError for a name that no check has."""
    checks = all_checks()
    for name in spec.preflight.only:
        if name not in checks:
            raise UsageError(unknown_name("--only", name, "check", checks))
    chosen = of_level(checks.values(), spec.preflight.level, spec.preflight.only)
    # with sync the nodes get what is here
    return [c for c in chosen if c.name in spec.preflight.only or not (spec.launch.sync and c.group == "code")]


def look(spec: RunSpec, cluster: Cluster, checks: Sequence[Check], printing: Printing, transport: Transport) -> int:
    """Ask the nodes, and print what the checks say. Return the exit code."""
    run = RunDirectory.create(Path(spec.places.runs_dir), "check", time.time())
    if not (printing.as_json or printing.quiet):
        who = f"role {printing.role}, " if printing.role else ""
        what = f"{who}{count_of(len(checks), 'check')} on {count_of(len(cluster.nodes), 'node')}"
        sys.stdout.write(f"check     {spec.preflight.level}: {what} (from {cluster.source})\n")
    progress = ProgressLine(printing.as_json or printing.quiet)
    evidence = look_at_nodes(spec, cluster, run, checks, progress.show, transport)
    progress.end()
    if not cluster.is_virtual:
        findings = judge_evidence(evidence, checks, spec.preflight.allow)
        remember_nodes(evidence, findings, checks, run.name)
    return close(evidence, checks, spec, run, printing)


def remember_nodes(evidence: PreflightDocument, findings: Sequence[Finding], checks: Iterable[Check], run: str) -> None:
    """Note what the check has found of each node, for `allranks nodes` and `run --avoid`."""
    blamed = blame((), findings, hardware_checks(checks))
    seen = {}
    for name, facts in evidence.nodes.items():
        seen[name] = (str(facts.get("hostname") or name), read_facts(facts).identity)
    line = NodeRecord(round(time.time(), 1), run, "check", "")
    add_records(ledger_file(os.environ), records_of(seen, line, blamed))


def close(
    evidence: PreflightDocument, checks: Sequence[Check], spec: RunSpec, run: RunDirectory | None, printing: Printing
) -> int:
    """Judge the evidence, print the findings, save the page.

    Return the exit code: 4 where a node could not be reached, 3 where a check failed, else 0.
    """
    findings = judge_evidence(evidence, checks, spec.preflight.allow)
    rows = table(evidence.request, evidence.nodes, checks, findings)
    explained = {}
    spec_asked = evidence.request.get("spec")
    if isinstance(spec_asked, dict):
        gate = evidence.request.get("gate")
        explained = explain(from_document(spec_asked), gate if isinstance(gate, dict) else {}, evidence.nodes)
    directory = None if run is None else str(run.path)
    if run is not None and can_write_pages():
        from allranks.report.page import check_page  # imported late: allranks.pyz has no Jinja2

        page = check_page(run.name, evidence, findings, rows, {c.name: c.title for c in checks}, grouped(explained))
        say_unwritten_page(run, run.write_page(page))
    failed = [finding for finding in findings if finding.status == "fail"]
    colour = shows_colour(sys.stdout)
    if printing.as_json:
        report = CheckReport(
            "" if run is None else run.name,
            directory,
            ok=not failed,
            findings=findings,
            table=rows,
            covered=evidence.covered or None,
            settings=explained,
            role=printing.role,
        )
        lines = [document_line(report)]
    elif printing.quiet:
        wrong = [finding for finding in findings if finding.status in ("fail", "warn")]
        lines = finding_lines(wrong, colour, verbose=False)
    else:
        width = shutil.get_terminal_size((120, 40)).columns
        lines = table_lines(rows, {c.name: c for c in checks}, width, printing.verbose, colour)
        settings = [] if spec.preflight.only else setting_lines(explained)  # checks by name were asked for, and no more
        for block in (finding_lines(findings, colour, printing.verbose), settings):
            if block:
                lines += ["", *block]
        if evidence.covered:
            lines.append(f"pairs     {evidence.covered}")
        if findings:
            lines.append("")
        lines.append(f"result    {counts(findings, rows)}")
        if directory is not None:
            lines.append(f"saved     {directory}/report.html (judge again: allranks check --from {directory})")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    if any(finding.check == "reached" for finding in failed):
        return exitcodes.NODE_FAILED
    return exitcodes.code_if(bool(failed), exitcodes.CHECK_FAILED)


def say_unwritten_page(run: RunDirectory, is_written: bool) -> None:
    """Say on standard error that the disk has no page: the answer stands without it."""
    if not is_written:
        sys.stderr.write(f"note: {run.path}/report.html was not written ({run.write_failure})\n")
