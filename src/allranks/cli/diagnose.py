"""allranks diagnose: one cause for a failed run, from its run directory or from any logs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from allranks.diagnose.verdict import judge_logs
from allranks.engines import settle
from allranks.errors import RunNotFound, UsageError
from allranks.exitcodes import DONE
from allranks.findings import Verdict
from allranks.protocol.codec import encode
from allranks.report.sentences import verdict_lines
from allranks.report.terminal import redraw_line
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import VerdictDocument, verdict_document
from allranks.runs.judged import judge_run
from allranks.runs.logdiagnosis import LogPart, evidence, find_logs, read_stream, scan
from allranks.settings.parsers import path
from allranks.settings.table import SettingRow

from .chosen_run import find_in, runs_directory
from .declare import AS_JSON, RUNS_DIR, Argument, Declared

SAID_FROM = 128 << 20  # bytes from which on the terminal is told how far reading is


def command(what: tuple[str, ...], html: str | None, runs_dir: str | None, json_: bool) -> int:
    """Judge a run, or logs."""
    verdict = _verdict(list(what), runs_dir, html)
    if json_:
        print(json.dumps(encode(verdict)))
        return DONE
    for line in lines(verdict):
        print(line)
    return DONE


COMMAND = Declared(
    "diagnose",
    "Why a run failed: cause, culprit, evidence with file and line, and what to do.",
    ("diagnose slurm-4711.out",),
    command,
    arguments=(
        Argument(
            "what",
            "[FILE… | DIR | - | RUN]",
            "logs of any launcher, a directory of them, standard input, or a run [default: the newest run]",
            many=True,
            complete="runs",
        ),
    ),
    options=(
        SettingRow("html", path("the path of a file"), "write a page of it, too"),
        RUNS_DIR,
        AS_JSON,
    ),
)


def lines(verdict: VerdictDocument) -> list[str]:
    """Write the verdict as `run` does, with what else it may be; of a run that has not failed one sentence."""
    if verdict.cause is None:
        return [verdict.message]
    others = [f"  or      {other.id}: {other.message[:160]}" for other in verdict.runners_up]
    return [*verdict_lines(verdict), *others]


def _verdict(words: list[str], runs_dir: str | None, html: str | None) -> VerdictDocument:
    if words == ["-"]:
        return _of_logs(judge_logs(read_stream(sys.stdin.buffer)), [], html)
    run = _run(words, runs_dir)
    if run is not None:
        if html is not None:
            from .report import fresh_redactor, write_page  # imported late: allranks.pyz has no Jinja2

            write_page(run, Path(html), fresh_redactor())
        return judge_run(run, progress)
    scanned = scan(find_logs(words), progress)
    return _of_logs(judge_logs(evidence(scanned)), scanned, html)


def _of_logs(verdict: Verdict, scanned: Sequence[tuple[Path, Sequence[LogPart]]], html: str | None) -> VerdictDocument:
    """Write the page of a verdict on logs, where one is wanted. `scanned`: nothing for standard input."""
    if html is not None:
        from .report import write_log_page  # imported late: allranks.pyz has no Jinja2

        write_log_page(verdict.to_json(), scanned, Path(html))
    return verdict_document(verdict)


def _run(words: list[str], runs_dir: str | None) -> RunDirectory | None:
    """Find the run that the one word names, or the newest without a word; None where the words are logs."""
    if len(words) > 1:
        return None
    if words and Path(words[0]).exists() and not (Path(words[0]) / "run.json").is_file():
        return None
    try:
        run = find_in(runs_directory(runs_dir), words[0] if words else None)
    except RunNotFound:
        if words:
            raise UsageError(f"{words[0]}: no such file, directory or run") from None
        raise
    settle(run, time.time())
    return run


def progress(done: int, total: int) -> None:
    """One line that is written over, for large logs on a terminal."""
    if total >= SAID_FROM and sys.stderr.isatty():
        redraw_line(sys.stderr, f"reading {done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if done < total else "")
