"""allranks attach: follow a run, or take it over where its controller is gone."""

from __future__ import annotations

import time

from allranks.report.live import JsonView, LiveView
from allranks.runs.directory import RunDirectory
from allranks.settings.parsers import FLAG
from allranks.settings.table import SettingRow

from .chosen_run import find_run
from .declare import AS_JSON, RUN, RUNS_DIR, Declared


def command(run: str | None, runs_dir: str | None, take_over: bool, json_: bool) -> int:
    """Follow a run, or take it over."""
    # Imported late: `attach --help` needs no engine.
    from allranks.engines import engine_of
    from allranks.engines.following import Watched

    from .follow import follow_to_end, print_end

    directory = find_run(run, runs_dir)
    view = JsonView() if json_ else LiveView()
    result = directory.read_document("result.json")
    if result is not None:
        return print_end(directory, result, view, json_, page=False)
    engine = engine_of(directory)
    if engine is not None and (directory.job is not None or not directory.controller_alive()):
        return follow_to_end(engine.follow(directory, view), view, json_)
    if directory.controller_alive() and not take_over:
        return follow_to_end(Watched(directory, view), view, json_)
    return _take_over(directory, view, json_)


COMMAND = Declared(
    "attach",
    "Follow a run again. Where its launcher died, take it over before the lease is up.",
    ("attach",),
    command,
    arguments=(RUN,),
    options=(SettingRow("take_over", FLAG, "replace a controller that lives"), RUNS_DIR, AS_JSON),
)


def _take_over(run: RunDirectory, view: LiveView | JsonView, json_: bool) -> int:
    # Imported late: following needs none of it
    from allranks.engines.ssh import ssh_reach
    from allranks.gang import session as sessions

    from .keys import offer
    from .run import close

    view.event({"t": time.time(), "event": "note", "message": f"taking over {run.name}"})
    session = sessions.adopt(run, view, ssh_reach)
    return close(session, session.run(None if json_ else offer), json_)
