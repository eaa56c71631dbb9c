"""allranks run: start a gang on the target's nodes, watch it, end it, explain it."""

from __future__ import annotations

import os

import click

from allranks import exitcodes
from allranks.engines import NotStarted, engine_for
from allranks.engines.elsewhere import LaunchElsewhere, controller_elsewhere
from allranks.errors import UsageError
from allranks.report.live import choose_view
from allranks.runs.result import end_interrupted
from allranks.settings.runspec import SSH

from .config_files import use_signatures
from .declare import Given
from .follow import detach, follow_to_end, print_end
from .outlets import Outlets
from .target import require_command, resolve_options, say_notes


def command(typed: Given, config: str | None, dry_run: bool, quiet: bool, json_: bool) -> int:
    """Start a run where its target says."""
    use_signatures(None, os.environ)
    resolved = resolve_options(typed, config)
    require_command(resolved)
    spec = resolved.spec
    if spec.launch.roles and spec.target.sky:
        raise UsageError("--sky runs one role. Roles need --hosts, --local, --slurm or --k8s")
    if typed.get("reach") not in (None, SSH) and spec.target.hosts is None:  # the key of a file may be for other runs
        raise UsageError(f"--reach {spec.launch.reach} needs --hosts. The nodes of this run are not reached by ssh")
    output = spec.output
    elsewhere = controller_elsewhere(resolved) if output.controller is not None else None
    launch = elsewhere or engine_for(spec).prepare(resolved)
    say_notes(resolved)
    if dry_run:
        click.echo(launch.describe(json_))
        return exitcodes.DONE
    if isinstance(launch, LaunchElsewhere):
        return launch.run(quiet, json_)
    outlets = Outlets(spec)
    plain_view = choose_view(json_, output.fold, quiet)
    leaves = output.detach or output.controller is not None
    view = plain_view if leaves else outlets.view_of(plain_view)
    try:
        started = launch.start(view)
    except NotStarted as refused:
        return print_end(refused.run, refused.result, view, json_, page=True)
    if started.job is not None:  # the controller in the job has the same settings
        outlets.close()
        view = plain_view
        started.show_in(view)
    try:
        if leaves:
            return detach(started, view, outlets, output, quiet, json_)
        return follow_to_end(started, view, json_)
    except KeyboardInterrupt:  # between what the engine and the session protect themselves
        if started.awaits_ranks and started.run is not None:
            end_interrupted(started.run)
        raise
