"""Reads a run directory, and the tests and checks beside it, for a page or a bundle; everything with an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from allranks.errors import ConfigError
from allranks.findings import Finding
from allranks.runs import preflight
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import PreflightDocument, SuiteResult, suite_result
from allranks.runs.judged import judge_run
from allranks.runs.regular import open_regular
from allranks.runs.tests import read_rows

from .excerpts import excerpt, logs_of
from .record import Record

MOST_LOGS = 96
MOST_TEXTS = 48
TEXT = 48 << 10  # bytes of a stack, a dump, a kernel log
MOST_EVENTS = 50_000
RELATED_AGE = 14 * 86400.0  # seconds between a run and a test that says something of its nodes
SUITES = ("sync", "bandwidth", "pairs", "staged", "check")
TEXTS = (".txt", ".log", ".json", ".jsonl")
Checks = Callable[[PreflightDocument], tuple[list[Finding], Mapping[str, Mapping[str, str]]]]


def gather(run: RunDirectory, judge: Checks) -> Record:
    """`judge` gives findings and table of saved preflight evidence."""
    verdict = judge_run(run)
    where = verdict.finding.where
    logs = sorted(logs_of(run), key=lambda log: log.rank is None or (log.rank, log.role) != (where.rank, where.role))
    saved = _preflight(run)
    excerpts = [shown for log in logs[:MOST_LOGS] if (shown := excerpt(log, run.path / log.file))]
    return Record(
        name=run.name,
        directory=str(run.path.absolute()),
        state=run.state(),
        verdict=verdict,
        run=run.read_run(),
        result=run.read_result(),
        status=run.read_status(),
        facts=tuple(run.read_facts(all_roles=True)[0][:MOST_EVENTS]),
        preflight=saved,
        checks=judge(saved)[1] if saved.nodes else {},
        tests=tuple(_tested(path, judge) for path in related(run)),
        links=tuple(read_rows(run).get("link", ())),
        texts=dict(_texts(run)),
        excerpts=tuple(excerpts),
        logs_left_out=len(logs) - len(excerpts),
    )


def _preflight(run: RunDirectory) -> PreflightDocument:
    try:
        return preflight.read(run.path)
    except ConfigError:
        return PreflightDocument()


def evidence_files(run: RunDirectory) -> list[Path]:
    """Text files of the evidence, but preflight.json: stacks, dumps, error files, kernel logs."""
    paths = sorted((run.path / "evidence").glob("**/*"))
    return [p for p in paths if p.suffix in TEXTS and p.name != preflight.NAME and p.is_file() and not p.is_symlink()]


def _texts(run: RunDirectory) -> Iterator[tuple[str, str]]:
    for path in evidence_files(run)[:MOST_TEXTS]:
        try:
            with open_regular(path) as file:
                data = file.read(TEXT + 1)
        except OSError:
            continue
        end = ""
        if len(data) > TEXT:
            data = data[: data.rfind(b"\n", 0, TEXT) + 1]
            end = "… cut here"
        yield path.relative_to(run.path).as_posix(), data.decode("utf-8", "replace") + end


# -- tests and checks beside the run ---------------------------------------------------------------


def related(run: RunDirectory) -> list[Path]:
    """Of each suite of tests, and of checks, the newest directory beside the run that is about nodes of it."""
    nodes = {node.name for node in run.read_run().nodes}
    started = run.started
    newest: dict[str, tuple[float, Path]] = {}
    for path in run.path.absolute().parent.glob("*"):
        if path.name == run.name or path.is_symlink() or not path.name.startswith(("test", "check")):
            continue
        suite, names, t = _about(path)
        if suite in SUITES and nodes.intersection(names) and abs(t - started) <= RELATED_AGE:
            newest[suite] = max(newest.get(suite, (t, path)), (t, path))
    return [newest[suite][1] for suite in SUITES if suite in newest]


def _about(path: Path) -> tuple[str, tuple[str, ...], float]:
    beside = RunDirectory(path)
    result = beside.read_result()
    if isinstance(result, SuiteResult) and result.suite:
        return result.suite, result.nodes, result.started or 0.0
    saved = _preflight(beside)
    suite = "check" if saved.nodes and result is None else ""
    return suite, tuple(saved.nodes), saved.t


def _tested(path: Path, judge: Checks) -> SuiteResult:
    beside = RunDirectory(path)
    result = beside.read_result()
    if result is not None:
        return replace(suite_result(result), run=path.name)
    saved = _preflight(beside)
    findings = tuple(judge(saved)[0])
    ok = not any(finding.status == "fail" for finding in findings)
    return SuiteResult(path.name, findings=findings, ok=ok, suite="check", nodes=tuple(saved.nodes), started=saved.t)
