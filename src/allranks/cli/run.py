"""allranks run: start a gang on the target's nodes, watch it, end it, explain it."""

from __future__ import annotations

import click

from allranks import exitcodes
from allranks.engines import NotStarted, engine_for
from allranks.report.live import choose_view
from allranks.settings.table import settings_of

from .declare import AS_JSON, CONFIG, DRY_RUN, Declared, Given
from .follow import detach, follow_to_end, print_end
from .target import require_command, resolve_options, say_notes


def command(typed: Given, config: str | None, dry_run: bool, json_: bool) -> int:
    """Start a run where its target says."""
    resolved = resolve_options(typed, config)
    require_command(resolved)
    output = resolved.spec.output
    launch = engine_for(resolved.spec).prepare(resolved)
    say_notes(resolved)
    if dry_run:
        click.echo(launch.describe(json_))
        return exitcodes.DONE
    view = choose_view(json_, output.fold)
    try:
        started = launch.start(view)
    except NotStarted as refused:
        return print_end(refused.run, refused.result, view, json_, page=True)
    if output.detach:
        return detach(started, view, output.fold, json_)
    return follow_to_end(started, view, json_)


COMMAND = Declared(
    "run",
    "Start training on every node, watch it, and end all of it if any part fails.",
    ("run --hosts hosts.txt --nproc 8 train.py --epochs 3",),
    command,
    settings=settings_of("run"),
    command_help="train.py …, -m PACKAGE.MODULE …, or any program. What follows it is the program's",
    options=(CONFIG, DRY_RUN, AS_JSON),
)
