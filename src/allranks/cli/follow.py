"""Following a run that another process controls: its events and its logs, until it ends."""

from __future__ import annotations

import json
import sys
import time

from allranks.errors import NodeError
from allranks.report.live import JsonView, View
from allranks.runs.directory import RunDirectory
from allranks.runs.reading import LogReader

PAUSE = 0.2


def follow_run(run: RunDirectory, view: View | JsonView, json_: bool = False) -> int:
    """Show what comes from now on; Ctrl-C leaves the run alone. Returns the run's exit code, 0 if left.

    Raises NodeError where the controller dies before it has written a result.
    """
    _, offset = run.read_events()
    reader = LogReader(run)
    reader.skip_to_end()
    try:
        while True:
            events, offset = run.read_events(offset)
            for event in events:
                view.event(event)
            now = time.time()
            for node, rank, data in reader.fresh():
                view.output(node, rank, data, now)
            status = run.read_document("status.json")
            if status is not None:
                view.status(status, now)
            view.tick(now)
            alive = run.controller_alive()  # before the look: a controller writes the result, then it ends
            result = run.read_document("result.json")
            if result is not None:
                if json_:
                    sys.stdout.write(json.dumps({"schema": 1, **result}) + "\n")
                view.closing(result, result.get("verdict"))
                return int(result["exit"])
            if not alive:
                raise NodeError(f"the controller of {run.name} died. hint: allranks attach {run.name}")
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        print(f"\nleft; the run goes on. To end it: allranks stop {run.name}", file=sys.stderr)
        return 0
