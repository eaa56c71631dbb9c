"""allranks diagnose: one cause for a failed run, from its run directory or from any logs."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from allranks.diagnose import causes
from allranks.diagnose.verdict import judge_logs
from allranks.engines import settle
from allranks.errors import RunNotFound, UsageError
from allranks.exitcodes import DONE
from allranks.findings import Verdict
from allranks.protocol.codec import encode
from allranks.report.sentences import verdict_lines
from allranks.report.terminal import paint_line, shows_colour
from allranks.runs.directory import RunDirectory
from allranks.runs.judged import judge_run
from allranks.runs.logdiagnosis import find_logs, read_log_files, read_stream

from .chosen_run import find_in, runs_directory
from .config_files import use_signatures

NO_FAILURE = "none"  # what -q prints in the place of a cause


def command(
    what: tuple[str, ...],
    html: str | None,
    exit_code: bool,
    quiet: bool,
    signatures: str | None,
    runs_dir: str | None,
    json_: bool,
) -> int:
    """Judge a run, or logs."""
    use_signatures(signatures, os.environ)
    words = list(what)
    run = None if words == ["-"] else _run(words, runs_dir)
    verdict = _verdict(words, run, html)
    if json_:
        print(json.dumps(encode(verdict)))
    elif quiet:
        print(verdict.cause or NO_FAILURE)
    else:
        for line in lines(verdict):
            print(paint_line(line, shows_colour(sys.stdout)))
    return code_of(verdict, run) if exit_code else DONE


def lines(verdict: Verdict) -> list[str]:
    """Write the verdict as `run` does, with what else it may be; of a run that has not failed one sentence."""
    if verdict.cause is None:
        return [verdict.finding.message]
    return verdict_lines(verdict, with_runners_up=True)


def code_of(verdict: Verdict, run: RunDirectory | None) -> int:
    """Return the exit code that stands for a verdict: of a run the one that it ended with, unless it is judged again.

    Logs do not say whether a rank failed: what their verdict names counts as the program's failure where it may be one.
    """
    result = run.read_result() if run is not None else None
    if result is not None and result.cause == verdict.cause:
        return result.exit
    if verdict.cause is None:
        return DONE
    return causes.exit_code(verdict, None, program_failed=True)


def _verdict(words: list[str], run: RunDirectory | None, html: str | None) -> Verdict:
    if words == ["-"]:
        return _of_logs(judge_logs(read_stream(sys.stdin.buffer)), [], html)
    if run is not None:
        if html is not None:
            from .report import write_page  # imported late: allranks.pyz has no Jinja2

            write_page(run, Path(html))
        return judge_run(run)
    evidence, logs, unread = read_log_files(find_logs(words))
    for path, reason in unread.items():
        print(f"note: {path}: {reason}", file=sys.stderr)
    return _of_logs(judge_logs(evidence), logs, html)


def _of_logs(verdict: Verdict, files: Sequence[Path], html: str | None) -> Verdict:
    """Write the page of a verdict on logs, where one is wanted. `files`: nothing for standard input."""
    if html is not None:
        from .report import write_log_page  # imported late: allranks.pyz has no Jinja2

        write_log_page(verdict, files, Path(html))
    return verdict


def _run(words: list[str], runs_dir: str | None) -> RunDirectory | None:
    """Find the run that the one word names, or the newest without a word; None where the words are logs."""
    runs = [word for word in words if (Path(word) / "run.json").is_file()]
    if runs and len(words) > 1:
        hint = f"allranks diagnose {shlex.quote(runs[-1])}"
        raise UsageError(f"{runs[0]} is the directory of a run, and each run has a verdict of its own\nhint: {hint}")
    if len(words) > 1 or (words and not runs and Path(words[0]).exists()):
        return None
    try:
        run = find_in(runs_directory(runs_dir), words[0] if words else None)
    except RunNotFound:
        if words:
            raise UsageError(f"{words[0]}: no such file, directory or run") from None
        raise
    settle(run, time.time())
    return run
