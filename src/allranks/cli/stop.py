"""allranks stop: end a run in order, through its controller or, where that is dead, through the nodes."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from allranks.agent.processes import Process, read_process, send_signal
from allranks.engines import Stopped, engine_of
from allranks.errors import AllranksError, RunIsElsewhere, UsageError
from allranks.exitcodes import NODE_FAILED, code_if
from allranks.protocol.codec import document_line
from allranks.protocol.run_facts import SaveAsked, SaveDone, of_kind
from allranks.report.live import choose_view
from allranks.report.sentences import event_line, left_lines
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import Left, saved_limit
from allranks.runs.regular import size_of

from .chosen_run import find_in, list_runs, runs_directory, with_choices


def command(
    run: str | None,
    all_: bool,
    save: bool,
    now: bool,
    stop_grace: float | None,
    on: str | None,
    quiet: bool,
    runs_dir: str | None,
    json_: bool,
) -> int:
    """Stop a run, or all. With `save` the ranks save first."""
    if save and now:
        raise UsageError("--save and --now: ranks cannot save without time for it. Keep one of them")
    if on is not None:
        raise RunIsElsewhere(on, run)
    directory = runs_directory(runs_dir)
    if all_:
        runs = [r for r in list_runs(directory) if not r.has_ended]
        stop = _stop_or_say_why
    else:
        runs = [_the_one(directory, run)]
        stop = _stop
    asked = StopRequest(0.0 if now else stop_grace, save, quiet, json_)
    outcomes = [stop(item, asked) for item in runs]
    if json_:
        click.echo(document_line(StopReport(outcomes)))
    elif not (runs or quiet):
        click.echo("no run is left to stop")
    return max((outcome.code for outcome in outcomes), default=0)


class StopRequest(NamedTuple):
    """How runs are to be stopped, and what is printed of it. `grace`: seconds, None for each run's own."""

    grace: float | None
    save: bool
    quiet: bool
    as_json: bool

    def seconds(self, run: RunDirectory) -> float:
        """Return the grace of a run."""
        if self.grace is not None:
            return self.grace
        return saved_limit(run.read_run(), "stop_grace")

    def say(self, text: str) -> None:
        """Print a line of what went well."""
        if not (self.quiet or self.as_json):
            click.echo(text)


class StopReport(NamedTuple):
    """What `stop --json` prints."""

    stopped: Sequence[Stopped]


def _the_one(directory: Path, wanted: str | None) -> RunDirectory:
    """Return the run that is meant: without a name the active one, else the newest. Raise UsageError for several."""
    if wanted is None:
        active = [run for run in list_runs(directory) if not run.has_ended and run.controller_alive()]
        if len(active) > 1:
            choices = with_choices(f"{len(active)} runs are active", active)
            raise UsageError(f"{choices}, or allranks stop --all")
        if active:
            return active[0]
    return find_in(directory, wanted)


def _stop_or_say_why(run: RunDirectory, asked: StopRequest) -> Stopped:
    """Stop one of several runs: one that cannot be stopped keeps no other from it."""
    try:
        return _stop(run, asked)
    except AllranksError as error:
        print(f"{run.name} was not stopped: {error}", file=sys.stderr)
        return Stopped(run.name, "failed", error.exit_code, error=str(error))


def _stop(run: RunDirectory, asked: StopRequest) -> Stopped:
    if run.has_ended:
        asked.say(f"{run.name} is over")
        return Stopped(run.name, "over")
    controller = _controller(run)
    if asked.save:
        asked.say(_save_first(run, controller, asked.seconds(run)))
    if controller is not None:
        return _through_controller(run, controller, asked)
    return _through_engine(run, asked)


def _save_first(run: RunDirectory, controller: Process | None, seconds: float) -> str:
    """Have the ranks save, and wait until they have, at most `seconds`. Return what came of it, in a sentence.

    Raise UsageError where no controller could ask the ranks.
    """
    if run.engine:
        raise UsageError(
            f"{run.name} runs in {run.engine['engine']}, whose ranks take no signals from here\n"
            f"hint: allranks stop {run.name} lets them save before the end"
        )
    from allranks.engines.following import FollowedRun  # imported late: only --save of a job needs it
    from allranks.runs.view import View

    offset = size_of(run.path / "events.jsonl")
    followed = engine_of(run).follow(run, View()) if controller is None and run.job is not None else None
    if controller is not None:
        send_signal(controller, signal.SIGUSR1)
    elif isinstance(followed, FollowedRun):
        followed.pass_signal("USR1")
    else:
        raise UsageError(
            f"{run.name} has no controller here that could ask its ranks to save\n"
            f"hint: allranks attach {run.name}, then allranks stop --save {run.name}"
        )
    ends = time.monotonic() + seconds
    is_asked = False
    while time.monotonic() < ends and not run.has_ended:
        facts, offset = run.read_facts(offset)
        is_asked = is_asked or any(of_kind(facts, SaveAsked))
        for saved in of_kind(facts, SaveDone):
            return f"{run.name}: {event_line(saved, 0)}"
        time.sleep(0.05)
    if is_asked:
        return f"{run.name}: not all ranks have saved within {seconds:g} s"
    return f"{run.name}: ranks had {seconds:g} s after SIGUSR1. None was seen to call allranks.should_save"


def _controller(run: RunDirectory) -> Process | None:
    controller = run.read_run().controller
    if controller is None or controller.host != socket.gethostname() or not run.controller_alive():
        return None
    process = read_process(controller.pid or 0)
    return process if process is not None and process.start == controller.start_time else None


def _through_controller(run: RunDirectory, controller: Process, asked: StopRequest) -> Stopped:
    """SIGTERM to the controller is an orderly stop; a second one is one without grace. SIGCONT wakes a stopped one."""
    asked.say(f"stopping {run.name}: ranks have {asked.seconds(run):g} s to save")
    send_signal(controller, signal.SIGTERM)
    send_signal(controller, signal.SIGCONT)
    hurried = time.monotonic() + (asked.grace if asked.grace is not None else float("inf"))
    while not run.has_ended:
        process = read_process(controller.pid)
        if process is None or process.start != controller.start or process.state == "Z":
            break
        if time.monotonic() >= hurried:
            send_signal(controller, signal.SIGTERM)
            hurried = float("inf")
        time.sleep(0.05)
    result = run.read_result()
    if result is None:
        return _through_engine(run, asked)
    _print_left(run, result.left, asked)
    return Stopped(run.name, "controller", code_if(bool(result.left), NODE_FAILED))


def _through_engine(run: RunDirectory, asked: StopRequest) -> Stopped:
    engine = engine_of(run)
    grace = asked.seconds(run)
    asked.say(engine.stop_notice(run, grace))
    view = choose_view(asked.as_json, quiet=asked.quiet)
    stopped = engine.stop(run, grace, view)
    result = run.read_result()
    left: Left = result.left if result is not None else {}
    if stopped.job is None and result is not None:
        from .follow import leave_page  # imported late: most runs have a controller

        view.closing(result)
        leave_page(run, result.exit, asked.as_json)
    else:
        _print_left(run, left, asked)
    return stopped._replace(code=code_if(bool(left), NODE_FAILED) or stopped.code)


def _print_left(run: RunDirectory, left: Left, asked: StopRequest) -> None:
    if not left:
        asked.say(f"{run.name} has ended. Nothing of it is left")
    elif not asked.as_json:
        click.echo("\n".join(left_lines(left)))
