"""The page of a run: one file, nothing fetched from elsewhere, everything escaped (reads its templates).

The only script is a fixed one that filters log lines; the page's policy lets run what has that script's hash and
nothing else. Data stand in no script. All lists have an end.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup, escape

from allranks.findings import Finding, explain_command
from allranks.protocol.codec import encode
from allranks.protocol.run_facts import of_kind
from allranks.runs.documents import ResultDocument, RunDocument, SuiteResult
from allranks.runs.timeledger import ledger_of
from allranks.settings import RunSpec
from allranks.settings.document import to_document
from allranks.text import count_of, cut, format_elapsed, format_ranks, format_size, plural

from .checks_table import WORDS, counts
from .ledgerwords import goodput_words, ledger_rows
from .linkmaps import link_map
from .machines import addresses, facts_of, machine_groups, scheduler
from .page import FINDINGS, LINES, environment, findings_of, moment, render, test_level
from .record import Excerpt, LogName, Record
from .redact import Hidden
from .timeline import timeline
from .timeplot import legend, timeline_plot

MOST_LINES = 600  # of a log, at its beginning and its end
TEXTS = 600_000  # of stacks, dumps, kernel logs
LINE = 1000  # characters of a log line
NODES = 64
FAILURES = 3  # of a test beside the run
STATES = {"done": "ok", "failed": "fail", "orphaned": "fail", "stopped": "warn"}


def run_page(record: Record, hidden: Sequence[Hidden] = ()) -> str:
    """Write the page as HTML; `record` is without secrets already, `hidden` says what was hidden."""
    script = environment().get_template("search.js").render().strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    run = record.run or RunDocument()
    result = record.result or ResultDocument()
    verdict = record.verdict
    node_facts = facts_of(record.preflight)
    where = verdict.finding.where
    line = timeline(record.facts, run, record.status)
    own = [stamped for stamped in record.facts if not stamped.role]
    ledger = result.time_ledger or ledger_of(own, record.status)
    links_of, links = _links(record, [node.name for node in run.nodes])
    checks_summary, columns, checks, columns_left_out = _checks(record)
    share = TEXTS // max(1, len(record.texts))
    return render(
        "run.html",
        script=Markup(script),
        script_hash=f"sha256-{digest}",  # as a Content-Security-Policy names a script
        name=record.name,
        state=record.state,
        level=STATES.get(record.state, "unknown"),
        summary=_summary(run, record),
        verdict=verdict,
        failed=verdict.finding.status == "fail",
        victims=format_ranks(verdict.victims) if verdict.victims else "",
        remedy=verdict.finding.remedy.splitlines()[:LINES],
        more=explain_command(verdict.cause) if verdict.finding.status == "fail" else "",
        where=encode(where),
        others=verdict.runners_up[:LINES],
        detected=_duration(verdict.detected_after_s),
        findings=findings_of(
            result.findings or tuple(found.fact for found in of_kind(record.facts, Finding)), verdict.finding.message
        ),
        roles=result.roles,
        attempts=_attempts(result),
        ledger=ledger_rows(ledger),
        goodput=goodput_words(ledger.goodput),
        wall=format_elapsed(ledger.wall),
        plot=timeline_plot(line, where),
        legend=legend(line),
        began=moment(line.start),
        links=links,
        links_of=links_of,
        tests=_tests(record),
        checks_summary=checks_summary,
        checks_columns=columns,
        checks=checks,
        columns_left_out=columns_left_out,
        check_words=WORDS,
        texts=[(file, escape(cut(text, share))) for file, text in record.texts.items()],
        logs=_logs(record.excerpts),
        logs_left_out=record.logs_left_out,
        environment=_environment(record),
        machines=machine_groups(node_facts)[:NODES],
        hosts=addresses(node_facts)[:NODES],
        hidden=[(place.file, place.kind, place.count, ", ".join(map(str, place.lines))) for place in hidden],
    )


def _duration(seconds: float | None) -> str:
    return format_elapsed(seconds) if seconds is not None and 0 <= seconds < 1e9 else ""


# -- the head --------------------------------------------------------------------------------------


def _summary(run: RunDocument, record: Record) -> str:
    parts = []
    if record.status.world_size:
        parts.append(f"{count_of(record.status.world_size, 'rank')} on {count_of(len(run.nodes), 'node')}")
    if moment(run.started):
        parts.append(f"started {moment(run.started)}")
    if record.result is not None:
        if _duration(record.result.timing.total):
            parts.append(f"took {_duration(record.result.timing.total)}")
        parts.append(f"exit {record.result.exit}")
    return "; ".join(parts)


def _attempts(result: ResultDocument) -> list[tuple[int, str, str]]:
    if len(result.attempts) < 2:
        return []
    rows = []
    for attempt in result.attempts[:FINDINGS]:
        why = ""
        if attempt.verdict is not None:
            why = "; ".join(text for text in (attempt.verdict.finding.message, attempt.verdict.decision) if text)
        rows.append((attempt.attempt, attempt.outcome, why))
    return rows


# -- tests, checks ---------------------------------------------------------------------------------


def _links(record: Record, names: Sequence[str]) -> tuple[str, str]:
    """Draw the links of this run's tests, else of the newest test of links beside it; give its name and the map."""
    if record.links:
        return "", link_map(record.links, names)
    for tested in record.tests:
        drawn = link_map(tested.links, names)
        if drawn:
            return tested.run, drawn
    return "", ""


def _tests(record: Record) -> list[tuple[SuiteResult, str, str]]:
    results = list(record.tests)
    if isinstance(record.result, SuiteResult) and record.result.suite:
        results.insert(0, replace(record.result, run=record.name))
    return [(result, test_level(result), _said(result)) for result in results]


def _said(result: SuiteResult) -> str:
    """Give the first failures, or warnings where it has passed; else what that means."""
    wanted = "warn" if result.ok else "fail"
    messages = [cut(finding.message, 300) for finding in findings_of(result.findings) if finding.status == wanted]
    text = "; ".join(messages[:FAILURES])
    if len(messages) > FAILURES:
        text += f" and {len(messages) - FAILURES} more"
    return text or result.meaning


def _checks(record: Record) -> tuple[str, list[str], dict[str, Mapping[str, str]], int]:
    """Give a summary, the nodes that have a column, the checks that are not all ok, and how many nodes are left out."""
    rows = {check: row for check, row in record.checks.items() if row}
    bad = {check: row for check, row in rows.items() if not set(row.values()) <= {"ok", "skipped"}}
    nodes = list(next(iter(rows.values()), {}))
    worst = [n for n in nodes if any(row.get(n) not in ("ok", "skipped") for row in bad.values())]
    shown = nodes if len(nodes) <= NODES else worst[:NODES]
    summary = counts((), rows) if rows else ""
    if bad:
        summary += ". The rows that are not all ok:"
    return summary, shown, bad, len(nodes) - len(shown)


# -- logs ------------------------------------------------------------------------------------------


def _logs(excerpts: Sequence[Excerpt]) -> list[tuple[LogName, str, int, list[tuple[int, str]]]]:
    """Give the name of each log, its size, its number of lines, and those that are shown.

    A line whose number is 0 says how many are left out.
    """
    return [
        (log.log._replace(node=cut(log.log.node, 100)), format_size(log.size), log.total, _lines(log))
        for log in excerpts
    ]


def _lines(log: Excerpt) -> list[tuple[int, str]]:
    numbered = [*enumerate(log.head, 1), *enumerate(log.tail, log.total - len(log.tail) + 1)]
    if len(numbered) > MOST_LINES:
        numbered = [*numbered[: MOST_LINES // 3], *numbered[-2 * MOST_LINES // 3 :]]
    rows: list[tuple[int, str]] = []
    last = 0
    for number, line in numbered:
        rows += _left_out(number - last - 1)
        rows.append((number, cut(line, LINE)))
        last = number
    return rows + _left_out(log.total - last)


def _left_out(count: int) -> list[tuple[int, str]]:
    return [(0, f"… {count:,} {plural(count, 'line is', 'lines are')} left out")] if count else []


# -- environment -----------------------------------------------------------------------------------


def _environment(record: Record) -> list[tuple[str, str]]:
    if record.run is None:
        return [("directory", record.directory)]
    run = record.run
    master = record.status.master
    rows = [
        ("command", shlex.join(run.command)),
        ("scheduler", scheduler(run, record.preflight)),
        ("working directory", run.workdir),
        ("run directory", record.directory),
        ("versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
        ("launched on", run.controller.host if run.controller is not None else ""),
        ("master", f"{master.address}:{master.port}" if master is not None and master.address else ""),
        *((f"setting {name}", value) for name, value in settings(run)),
    ]
    return [(cut(name, 100), value) for name, value in rows if value]


_DEFAULT = re.compile(r"schema|command|name|hosts|local|dry_run|json|fold")


def settings(run: RunDocument) -> list[tuple[str, str]]:
    """List what the user set, as far as it differs from nothing: names and values."""
    usual = to_document(RunSpec())
    chosen = [(name, value) for name, value in run.spec.items() if not _DEFAULT.fullmatch(name)]
    return [(name, str(value)) for name, value in chosen if usual.get(name) != value]
