"""The end of a run as it is written down: verdict.json, result.json, the last event and the last state (IO).

No other module writes result.json or verdict.json.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from allranks import early
from allranks.agent.link import describe_error
from allranks.errors import REPORT_TO
from allranks.exitcodes import CTRL_C
from allranks.findings import Finding, Verdict
from allranks.protocol.codec import encode
from allranks.protocol.run_facts import Fact, RunEnd, Stamped
from allranks.settings.runspec import Places

from .directory import RunDirectory
from .documents import ResultDocument, StatusDocument, Timing
from .opening import write_last_status
from .regular import replacing
from .timeledger import ledger_of

REOPENED = ("result.json", "verdict.json")


def least_result(
    run: RunDirectory, code: int, verdict: Verdict | None, findings: Sequence[Finding] = ()
) -> ResultDocument:
    """Make the result of a run without one of its controller: it did not begin, or its engine ended it."""
    return ResultDocument(
        run.name,
        str(run.path),
        code,
        verdict=verdict,
        findings=tuple(findings),
        timing=Timing(round(time.time() - run.started, 3)),
    )


@contextlib.contextmanager
def new_run(places: Places, now: float, suffix: str = "", again: RunDirectory | None = None) -> Iterator[RunDirectory]:
    """Make the directory of a run, or take the one that is there. Ctrl-C in the block writes its end.

    Raise UsageError where none can be made.
    """
    with contextlib.ExitStack() as stack:
        with early.HeldCtrlC():  # while a directory has neither a name here nor one who removes it
            run = again or RunDirectory.create(Path(places.runs_dir), places.name, now, suffix)
            stack.enter_context(over_when_interrupted(run))
            run.make_outputs()
        yield run


@contextlib.contextmanager
def over_when_interrupted(run: RunDirectory) -> Iterator[None]:
    """Write the end of a run that Ctrl-C interrupts before it has begun."""
    try:
        yield
    except KeyboardInterrupt:
        end_interrupted(run)
        raise


def end_interrupted(run: RunDirectory) -> None:
    """Write the end of a run that Ctrl-C has interrupted, so that it does not stay orphaned, unless it has one.

    A directory without run.json is removed.
    """
    if run.read_document("run.json") is None:
        shutil.rmtree(run.path, ignore_errors=True)
    elif not run.has_ended:
        write_result(run, least_result(run, CTRL_C, None), stopped=True)


def write_result(
    run: RunDirectory,
    result: ResultDocument,
    stopped: bool,
    status: StatusDocument | None = None,
    ended_t: float | None = None,
) -> ResultDocument:
    """Write all four, and return the result, with its ledger of time where it has none.

    `status` is the last state of nodes and ranks, where the one on disk is older. `ended_t` is when the run ended (unix
    seconds), else it is now.
    """
    run.give_room()
    end: Stamped[Fact] = Stamped("", time.time() if ended_t is None else ended_t, None, RunEnd(result.exit))
    if result.time_ledger is None:
        ledger = ledger_of([*run.read_facts()[0], end], run.read_status())
        timing = result.timing._replace(total=ledger.wall or result.timing.total)
        result = replace(result, goodput=ledger.goodput, time_ledger=ledger, timing=timing)
    if result.verdict is not None:
        run.write_document("verdict.json", encode(result.verdict))
    replace_result(run, result)
    run.append(end)
    if stopped:
        state = "stopped"
    elif result.exit:
        state = "failed"
    else:
        state = "done"
    write_last_status(run, state, status)
    return result


def replace_result(run: RunDirectory, result: ResultDocument) -> None:
    """Write result.json alone: of a test, with what the ranks have measured."""
    run.write_document("result.json", encode(result))


def reopen(run: RunDirectory) -> None:
    """Remove the end of a run that goes on after all."""
    for name in REOPENED:
        (run.path / name).unlink(missing_ok=True)


CAUSE = "internal-error"
NAME = "internal-error.txt"
TRACE = 64 << 10  # characters of a traceback


def traceback_of(error: BaseException) -> str:
    """All of it, but the beginning of a very long one."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))[-TRACE:]


def save_traceback(run: RunDirectory, error: BaseException) -> None:
    """Into the evidence of a run; on a full disk it is left out."""
    with contextlib.suppress(OSError):
        folder = run.path / "evidence"
        folder.mkdir(mode=0o700, exist_ok=True)
        with replacing(folder / NAME) as file:
            file.write(traceback_of(error).encode("utf-8", "backslashreplace"))


def internal_verdict(error: BaseException, run: str) -> Verdict:
    """No node, rank or link is to blame, so it has no place."""
    message = f"allranks itself failed: {describe_error(error)}. The ranks were ended"
    remedy = f"report it {REPORT_TO}: allranks report {run} --bundle makes a zip without secrets, with evidence/{NAME}"
    return Verdict(Finding(CAUSE, "fail", message, remedy), CAUSE, 1.0)
