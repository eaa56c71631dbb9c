"""allranks report: a page that says what a run did and why it failed, or a bundle to send to somebody."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from allranks.backends.plugins import all_checks
from allranks.errors import UsageError
from allranks.findings import Finding
from allranks.gang.checking import judge_evidence
from allranks.preflight.judge import table
from allranks.report.record import Document, Record
from allranks.report.redact import Redactor
from allranks.report.redacted import redacted
from allranks.report.runpage import run_page
from allranks.runs.concluded import settle
from allranks.runs.directory import RunDirectory
from allranks.runs.excerpts import Log, Sizes, excerpt, logs_of
from allranks.runs.gather import MOST_LOGS, gather
from allranks.runs.loose import Part
from allranks.settings.secrets import is_secret_name
from allranks.text import count_of, plural

from .diagnose import progress
from .options import AsJson, RunName, RunsDir
from .places import find_run

AT_ONCE = 16 << 20  # bytes of logs that are read for the page at the end of a failed run: some tenths of a second


def command(
    run: RunName = None,
    bundle: Annotated[bool, typer.Option("--bundle", help="a zip to send to an administrator or a maintainer")] = False,
    output: Annotated[str | None, typer.Option("--output", metavar="PATH", help="where it goes")] = None,
    redact: Annotated[
        list[str] | None, typer.Option("--redact", metavar="PATTERN", help="hide this, too (a regular expression)")
    ] = None,
    runs_dir: RunsDir = None,
    json_: AsJson = False,
) -> None:
    """One HTML page of a run: verdict, timeline, tests, logs with a search box. Secrets are hidden.

    Example: allranks report --bundle --redact 'acme-[a-z]+'
    """
    found = find_run(run, runs_dir)
    settle(found, time.time())
    known = known_secrets(os.environ)

    def fresh() -> Redactor:
        return Redactor(redact or (), known)

    if bundle:
        from allranks.runs.bundle import write_bundle

        path = place(output, f"{found.path.resolve().name}-bundle.zip")
        redactor, files = write_bundle(found, path, judged, fresh, progress)
        _say({"bundle": str(path), "files": files}, redactor, json_)
        return
    path, redactor = place(output, "report.html") if output else found.path / "report.html", fresh()
    write_page(found, path, redactor)
    _say({"page": str(path)}, redactor, json_)


def place(output: str | None, name: str) -> Path:
    """The file that --output names, or one of this name in the directory that it names, or here."""
    path = Path(output or name)
    return path / name if path.is_dir() else path


def write_page(run: RunDirectory, path: Path, redactor: Redactor) -> None:
    """The page of a run; UsageError where it can't be written."""
    _write(gather(run, judged, progress=progress), path, redactor)


def write_loose_page(verdict: Document, scanned: Sequence[tuple[Path, Sequence[Part]]], path: Path) -> None:
    """The page of a verdict on any logs, with what they say of it."""
    logs = [(Log(file, str(file), "", None, 0), parts) for file, parts in scanned[:MOST_LOGS]]
    found = tuple(e for log, parts in logs if (e := excerpt(log, parts, Sizes())))
    state = "failed" if verdict.get("status") == "fail" else "unknown"
    name = scanned[0][0].name if len(scanned) == 1 else f"{len(scanned)} logs" if scanned else "standard input"
    left_out = len(scanned) - len(found)
    record = Record(name, os.getcwd(), state, {}, {}, {}, verdict, excerpts=found, logs_left_out=left_out)
    _write(record, path, fresh_redactor())


def _write(record: Record, path: Path, redactor: Redactor) -> None:
    page = run_page(redacted(record, redactor), redactor.hidden)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name another place") from None


def fresh_redactor() -> Redactor:
    """One that knows the secrets of this process's environment."""
    return Redactor(known=known_secrets(os.environ))


def page_at_end(run: RunDirectory) -> Path | None:
    """The page of a run that has just failed; None where its logs are too large for it to be there at once, or it
    can't be written: `allranks report` makes it then."""
    path = run.path / "report.html"
    if sum(log.path.stat().st_size for log in logs_of(run)) > AT_ONCE:
        return None
    try:
        write_page(run, path, fresh_redactor())
    except Exception as error:  # of a page: the run has ended, and its exit code stands
        sys.stderr.write(f"note: no report.html: {type(error).__name__}: {error}\n")
        return None
    return path


def judged(seen: Document) -> tuple[list[Document], Mapping[str, Mapping[str, str]]]:
    """Findings and table of saved preflight evidence."""
    named = seen.get("checks") or ()
    checks = [check for check in all_checks().values() if check.name in named]
    found: list[Finding] = judge_evidence(seen, checks, ())
    return [f.to_json() for f in found], table(seen.get("request") or {}, seen["nodes"], checks, found)


def known_secrets(environ: Mapping[str, str]) -> list[str]:
    """Values of this process's own variables whose names look secret: hidden wherever they stand."""
    return [value for name, value in environ.items() if is_secret_name(name) and not value.startswith(("/", "~"))]


def _say(what: dict[str, Any], redactor: Redactor, json_: bool) -> None:
    hidden = redactor.hidden
    if json_:
        print(json.dumps({"schema": 1, **what, "redacted": [h.to_json() for h in hidden]}))
        return
    path = what.get("bundle") or what.get("page")
    count = sum(h.count for h in hidden)
    print(path)
    if count:
        kinds = ", ".join(sorted({h.kind for h in hidden}))
        where = "redactions.json in it" if "bundle" in what else "the end of the page"
        were = plural(count, "was", "were")
        print(f"{count_of(count, 'secret')} {were} hidden ({kinds}); {where} says where")
