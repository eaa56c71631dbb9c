"""What a command prints of a run that it follows: its end, or that it goes on without this terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from typing import NamedTuple, NoReturn

import click

from allranks import exitcodes
from allranks.engines.following import Launched, StartedRun
from allranks.errors import AllranksError
from allranks.protocol.codec import document_line, omit_none
from allranks.protocol.messages import StartedMessage
from allranks.protocol.run_facts import RunEnd
from allranks.report import can_write_pages
from allranks.report.live import LiveView
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument, saved_limit
from allranks.runs.opening import take_control
from allranks.runs.view import View
from allranks.settings.runspec import Output
from allranks.text import format_duration
from allranks.unpacked import hold_archive, remove_archive

from .outlets import Outlets


def follow_to_end(started: StartedRun, view: View, json_: bool, asks: bool = True, prints_document: bool = True) -> int:
    """Follow a run until it is over or the person leaves. Return the exit code; 0 where the run goes on.

    `prints_document`: with `json_` the result goes to standard output; False where the view prints it.
    """
    result = started.follow(asks and not json_)
    if result is None:
        name = started.run.name if started.run is not None else ""
        print(f"\n{name} goes on: allranks status {name}, logs -f, attach, stop", file=sys.stderr)
        return exitcodes.DONE
    code = print_end(started.run, result, view, json_, started.leaves_page, prints_document)
    started.linger(result)
    return code


def print_end(
    run: RunDirectory | None, result: ResultDocument, view: View, json_: bool, page: bool, prints_document: bool = True
) -> int:
    """Print the result of a run, and write its `page` where it failed. Return the exit code."""
    if json_ and prints_document:
        sys.stdout.write(document_line(result) + "\n")
    view.closing(result)
    if page and run is not None:
        leave_page(run, result.exit, json_)
    return result.exit


def leave_page(run: RunDirectory, code: int, json_: bool) -> None:
    """Write report.html of a run that failed, where pages can be written."""
    if code in (exitcodes.DONE, exitcodes.CTRL_C, exitcodes.TERMINATED) or not can_write_pages():
        return
    from .report import page_at_end  # imported late: it takes 100 ms, and most runs end well

    page = page_at_end(run)
    if page is not None and not json_:
        sys.stdout.write(f"page {page}\n")


def detach(started: StartedRun, view: View, outlets: Outlets, output: Output, quiet: bool, json_: bool) -> int:
    """Leave a run: to its Slurm job, else to a daemon that follows it with its outlets. Return the exit code.

    With --controller alone this process then shows the run to its end.
    """
    run = started.run
    assert run is not None  # `join` has no --detach
    if started.job is None:
        hold_archive()
        pid = os.fork()
        if pid == 0:
            _follow_as_daemon(started, run, outlets, output.fold)
        if not output.detach:
            return follow_to_end(Launched(run, view, pid), view, json_)
        if started.awaits_ranks:
            result = _await_ranks(run, pid, view)
            if result is not None:
                return print_end(run, result, view, json_, page=False)
            if not json_:
                view.tick(time.time())
    print_detached(run, quiet, json_, started.job)
    return exitcodes.DONE


def _follow_as_daemon(started: StartedRun, run: RunDirectory, outlets: Outlets, fold: bool) -> NoReturn:
    """Follow the run in this process, whose standard error is controller.log from now on, and end with it."""
    from allranks.gang.session import detach_stdio  # imported late: a follower needs nothing else of it

    code = exitcodes.INTERNAL
    try:
        detach_stdio(run.path / "controller.log")
        view = outlets.view_of(LiveView(fold=fold))
        started.show_in(view)
        take_control(run)
        code = follow_to_end(started, view, json_=False, asks=False)
    except AllranksError as error:
        code = error.exit_code
        print(f"allranks: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # the disk of controller.log is full
            sys.stdout.flush()
            sys.stderr.flush()
        remove_archive()
        os._exit(code)


def _await_ranks(run: RunDirectory, pid: int, view: View) -> ResultDocument | None:
    """Show what happens until ranks have started; return the result where the run has ended before.

    Raise AllranksError where the daemon `pid` ended without a result.
    """
    offset = 0
    while True:
        has_ended = _has_ended(pid)  # asked first: a daemon writes its last event, then it ends
        facts, offset = run.read_facts(offset, all_roles=True)
        for stamped in facts:
            view.event(stamped)
        own = [stamped.fact for stamped in facts if not stamped.role]  # servers start before the trainer
        if has_ended or any(isinstance(fact, (StartedMessage, RunEnd)) for fact in own):
            break
        time.sleep(0.1)
    result = run.read_result()
    if result is None and has_ended:
        raise AllranksError(f"the detached controller ended at once. See {run.path}/controller.log")
    return result if result is not None and result.exit else None


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


@omit_none
class DetachedRun(NamedTuple):
    """What `run --detach --json` prints; `job` is the number of the Slurm job."""

    run: str
    directory: str
    job: str | None = None
    detached: bool = True
    exit: int = exitcodes.DONE


def print_detached(run: RunDirectory, quiet: bool, json_: bool, job: str | None = None) -> None:
    """Say that a run goes on without this process and which commands reach it. Where `quiet`, print only its name."""
    if json_:
        click.echo(document_line(DetachedRun(run.name, str(run.path), job)))
        return
    if quiet:
        click.echo(run.name)
        return
    what = f"submitted job {job}" if job is not None else "detached"
    click.echo(f"{what}: allranks status {run.name} · logs -f · attach · stop")
    document = run.read_run()
    if job is None and not document.engine and not document.spec.get("controller"):
        lease = format_duration(saved_limit(document, "lease"))
        click.echo(f"keep this machine awake: nodes that hear nothing from it for {lease} end their ranks")
