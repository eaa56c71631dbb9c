"""allranks report: a page that says what a run did and why it failed, or a bundle to send to others."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from allranks.engines import settle
from allranks.errors import AllranksError, UsageError
from allranks.exitcodes import DONE
from allranks.findings import Finding, Verdict
from allranks.gang.inspection import judge_evidence
from allranks.gang.plugins import all_checks
from allranks.preflight.judge import table
from allranks.protocol.codec import document_line, omit_empty
from allranks.report.bundle import write_bundle
from allranks.report.excerpts import excerpt, logs_of
from allranks.report.gather import MOST_LOGS, gather
from allranks.report.record import LogName, Record
from allranks.report.redact import Hidden, Redactor, hidden_words, redacted
from allranks.report.runpage import run_page
from allranks.runs.child import OutOfTime, WorkFailed, in_child
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import PreflightDocument
from allranks.runs.regular import replacing, size_of
from allranks.settings.secrets import is_secret_name

from .chosen_run import find_run

AT_ONCE = 16 << 20  # bytes of logs that are read for the page at the end of a failed run: some tenths of a second
END_SECONDS = 10.0  # for that page


def command(
    run: str | None, bundle: bool, output: str | None, redact: tuple[str, ...], runs_dir: str | None, json_: bool
) -> int:
    """Write the page, or the bundle."""
    run_dir = find_run(run, runs_dir)
    settle(run_dir, time.time())
    if bundle:
        path = place(output, f"{run_dir.path.resolve().name}-bundle.zip")
        redactor, files = write_bundle(run_dir, path, judged, lambda: fresh_redactor(redact))
        made = Made(bundle=str(path), files=files, redacted=redactor.hidden)
    else:
        path = place(output, "report.html") if output else run_dir.path / "report.html"
        made = write_page(run_dir, path, redact)
    if json_:
        print(document_line(made))
        return DONE
    print(made.bundle or made.page)
    if made.redacted:
        where = "redactions.json in it" if made.bundle else "the end of the page"
        print(f"{hidden_words(made.redacted)}. {where} says where")
    return DONE


@omit_empty("page", "bundle", "files")
class Made(NamedTuple):
    """The page or the bundle that was written, the files in a bundle, and what was hidden."""

    page: str = ""
    bundle: str = ""
    files: Sequence[str] = ()
    redacted: Sequence[Hidden] = ()


def place(output: str | None, name: str) -> Path:
    """Return the file that --output names, or one of this name in the directory that it names, or here."""
    path = Path(output or name)
    return path / name if path.is_dir() else path


def write_page(run: RunDirectory, path: Path, patterns: Sequence[str] = ()) -> Made:
    """Write the page of a run; raise UsageError where it cannot be written."""
    redactor = fresh_redactor(patterns)
    _write(gather(run, judged), path, redactor)
    return Made(page=str(path), redacted=redactor.hidden)


def write_log_page(verdict: Verdict, files: Sequence[Path], path: Path) -> None:
    """Write the page of a verdict on any logs, with the lines that tell of it."""
    logs = [excerpt(LogName(str(file), "", None, 0), file) for file in files[:MOST_LOGS]]
    excerpts = tuple(log for log in logs if log is not None)
    state = "failed" if verdict.finding.status == "fail" else "unknown"
    if len(files) == 1:
        name = files[0].name
    elif files:
        name = f"{len(files)} logs"
    else:
        name = "standard input"
    left_out = len(files) - len(excerpts)
    record = Record(name, os.getcwd(), state, verdict, excerpts=excerpts, logs_left_out=left_out)
    _write(record, path, fresh_redactor())


def _write(record: Record, path: Path, redactor: Redactor) -> None:
    page = run_page(redacted(record, redactor), redactor.hidden)
    try:
        with replacing(path) as file:
            file.write(page.encode())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}. Name another place") from None


def fresh_redactor(patterns: Sequence[str] = ()) -> Redactor:
    """One that knows the secrets of this process's environment."""
    return Redactor(patterns, known_secrets(os.environ))


def page_at_end(run: RunDirectory) -> Path | None:
    """Write the page of a run that has just failed, and return its path. The run's exit code stands.

    None where the logs are too large for it to be there at once, or it is not ready in time: `allranks report`
    makes it then.
    """
    path = run.path / "report.html"
    if sum(size_of(run.path / log.file) for log in logs_of(run)) > AT_ONCE:
        return None
    try:
        in_child(partial(write_page, run, path), END_SECONDS)
    except (OutOfTime, WorkFailed, AllranksError) as error:
        with contextlib.suppress(OSError):
            for part in run.path.glob(".report.html.*.part"):
                part.unlink()
        sys.stderr.write(f"note: no report.html ({error}). `allranks report {run.name}` makes it\n")
        return None
    return path


def judged(evidence: PreflightDocument) -> tuple[list[Finding], Mapping[str, Mapping[str, str]]]:
    """Judge saved preflight evidence: its findings, and the status of each check on each node."""
    checks = [check for check in all_checks().values() if check.name in evidence.checks]
    findings = judge_evidence(evidence, checks, ())
    return findings, table(evidence.request, evidence.nodes, checks, findings)


def known_secrets(environ: Mapping[str, str]) -> list[str]:
    """Values of this process's own variables whose names look secret: hidden wherever they stand."""
    return [value for name, value in environ.items() if is_secret_name(name) and not value.startswith(("/", "~"))]
