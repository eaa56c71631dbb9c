"""allranks attach: follow a run, or take it over where its controller is gone."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from allranks.report.live import JsonView, View
from allranks.runs.directory import RunDirectory

from .follow import follow_run
from .places import find_run


def command(
    run: Annotated[str | None, typer.Argument(help="run directory or name (default: the newest)")] = None,
    runs_dir: Annotated[str | None, typer.Option(help="where run directories are (runs)")] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="replace a controller that lives")] = False,
    json_: Annotated[bool, typer.Option("--json", help="JSON on stdout")] = False,
) -> None:
    """Follow a run again; where its launcher died, take it over before the lease is up.

    Example: allranks attach
    """
    found = find_run(run, runs_dir)
    result = found.read_document("result.json")
    if result is not None:
        JsonView().closing(result, None) if json_ else View().closing(result, result.get("verdict"))
        if json_:
            sys.stdout.write(json.dumps({"schema": 1, **result}) + "\n")
        raise typer.Exit(int(result["exit"]))
    view = JsonView() if json_ else View()
    if found.job is not None:
        from .submitted import close as close_job
        from .submitted import follow

        raise typer.Exit(close_job(found, follow(found, found.job, view, found.read_events()[1]), view, json_))
    if found.engine and not found.controller_alive():
        from .afar import adopt
        from .afar import follow as follow_afar

        raise typer.Exit(follow_afar(found, adopt(found, view), view, json_))
    if found.controller_alive() and not take_over:
        raise typer.Exit(follow_run(found, view, json_))
    raise typer.Exit(_take_over(found, view, json_))


def _take_over(found: RunDirectory, view: View | JsonView, json_: bool) -> int:
    from allranks.gang import session as sessions  # imported late: following needs none of it

    from .keys import offer
    from .run import close

    view.event({"t": time.time(), "event": "note", "message": f"taking over {found.name}"})
    session = sessions.adopt(found, view)
    return close(session, session.run(None if json_ else offer), json_)
