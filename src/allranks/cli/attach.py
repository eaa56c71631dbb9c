"""allranks attach: follow a run, or take it over where its controller is gone."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from allranks.gang import session as sessions
from allranks.report.live import JsonView, View

from .afar import adopt as adopt_afar
from .afar import engine_of
from .afar import follow as follow_afar
from .follow import follow_run
from .keys import offer
from .places import find_run
from .run import close


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
            sys.stdout.write(json.dumps(result) + "\n")
        raise typer.Exit(int(result["exit"]))
    view = JsonView() if json_ else View()
    if found.job is not None:
        from .submitted import close as close_job
        from .submitted import follow

        raise typer.Exit(close_job(found, follow(found, found.job, view, found.read_events()[1]), view, json_))
    if engine_of(found) and not found.controller_alive():
        raise typer.Exit(follow_afar(found, adopt_afar(found, view), view, json_))
    if found.controller_alive() and not take_over:
        raise typer.Exit(follow_run(found, view))
    view.event({"t": time.time(), "event": "note", "message": f"taking over {found.name}"})
    session = sessions.adopt(found, view)
    raise typer.Exit(close(session, session.run(None if json_ else offer), json_))
