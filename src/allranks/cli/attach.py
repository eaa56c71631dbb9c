"""allranks attach: follow a run, or take it over where its controller is gone."""

from __future__ import annotations

import json
import sys
import time

from allranks.report.live import JsonView, View
from allranks.runs.directory import RunDirectory
from allranks.settings.parsers import FLAG
from allranks.settings.table import SettingRow

from .declare import AS_JSON, RUN, RUNS_DIR, Declared
from .follow import follow_run
from .places import find_run


def command(run: str | None, runs_dir: str | None, take_over: bool, json_: bool) -> int:
    """Follow a run, or take it over."""
    found = find_run(run, runs_dir)
    result = found.read_document("result.json")
    if result is not None:
        JsonView().closing(result, None) if json_ else View().closing(result, result.get("verdict"))
        if json_:
            sys.stdout.write(json.dumps({"schema": 1, **result}) + "\n")
        return int(result["exit"])
    view = JsonView() if json_ else View()
    if found.job is not None:
        from .submitted import close as close_job  # imported late: few runs are Slurm's
        from .submitted import follow

        return close_job(found, follow(found, found.job, view, found.read_events()[1]), view, json_)
    if found.engine and not found.controller_alive():
        from .afar import adopt  # imported late: few runs are a cluster's
        from .afar import follow as follow_afar

        return follow_afar(found, adopt(found, view), view, json_)
    if found.controller_alive() and not take_over:
        return follow_run(found, view, json_)
    return _take_over(found, view, json_)


COMMAND = Declared(
    "attach",
    "Follow a run again; where its launcher died, take it over before the lease is up.",
    ("attach",),
    command,
    arguments=(RUN,),
    options=(SettingRow("take_over", FLAG, "replace a controller that lives"), RUNS_DIR, AS_JSON),
)


def _take_over(found: RunDirectory, view: View | JsonView, json_: bool) -> int:
    from allranks.gang import session as sessions  # imported late: following needs none of it

    from .keys import offer
    from .run import close

    view.event({"t": time.time(), "event": "note", "message": f"taking over {found.name}"})
    session = sessions.adopt(found, view)
    return close(session, session.run(None if json_ else offer), json_)
