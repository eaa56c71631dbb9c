"""What a command prints of a run that it follows: its end, or that it goes on without this terminal."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from typing import Protocol

import click

from allranks import exitcodes
from allranks.engines.following import Followed, follow
from allranks.report.live import LiveView
from allranks.runs.directory import RunDirectory
from allranks.runs.opening import take_control
from allranks.runs.result import Document


class Closing(Protocol):
    """The part of a view that shows how a run has ended."""

    def closing(self, result: Document, verdict: Document | None) -> None:
        """End: how the run ended, and why."""


def follow_to_end(followed: Followed, view: Closing, json_: bool) -> int:
    """Follow a run until it is over or the person leaves. Return the exit code; 0 where the run goes on."""
    result = follow(followed)
    if result is None:
        name = followed.run.name
        print(f"\nleft. {name} goes on: allranks status {name} · logs -f · attach · stop", file=sys.stderr)
        return exitcodes.DONE
    return print_end(followed.run, result, view, json_, followed.leaves_page)


def print_end(run: RunDirectory, result: Document, view: Closing, json_: bool, page: bool) -> int:
    """Print the result of a run, and write its `page` where it failed. Return the exit code."""
    if json_:
        sys.stdout.write(json.dumps({"schema": 1, **result}) + "\n")
    view.closing(result, result.get("verdict"))
    code = int(result["exit"])
    if page:
        leave_page(run, code, json_)
    return code


def leave_page(run: RunDirectory, code: int, json_: bool) -> None:
    """Write report.html of a run that failed; allranks.pyz, which has no Jinja2, writes none."""
    if code in (exitcodes.DONE, exitcodes.CTRL_C, exitcodes.TERMINATED) or find_spec("jinja2") is None:
        return
    from .report import page_at_end  # imported late: it takes 100 ms, and most runs end well

    page = page_at_end(run)
    if page is not None and not json_:
        sys.stdout.write(f"page {page}\n")


def detach(followed: Followed, fold: bool, json_: bool) -> int:
    """Leave a run: to its Slurm job, else to a daemon that follows it. Return the exit code."""
    run = followed.run
    if followed.job is None and os.fork() == 0:
        code = 1
        try:
            code = _follow_as_daemon(followed, fold)
        finally:
            os._exit(code)
    print_detached(run, json_, followed.job)
    return exitcodes.DONE


def _follow_as_daemon(followed: Followed, fold: bool) -> int:
    from allranks.gang.session import detach_stdio  # imported late: a follower needs nothing else of it

    detach_stdio(followed.run.path / "controller.log")
    take_control(followed.run)
    view = LiveView(fold=fold)
    followed.show_in(view)
    return follow_to_end(followed, view, json_=False)


def print_detached(run: RunDirectory, json_: bool, job: str | None = None) -> None:
    """Say that a run goes on without this process, and which commands reach it."""
    if json_:
        fields = {"run": run.name, "directory": str(run.path), **({"job": job} if job is not None else {})}
        click.echo(json.dumps({"schema": 1, **fields, "detached": True, "exit": exitcodes.DONE}))
        return
    what = f"submitted job {job}" if job is not None else "detached"
    click.echo(f"{what}: allranks status {run.name} · logs -f · attach · stop")
