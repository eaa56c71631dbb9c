"""Following a run that another process controls: its events and its logs, until it ends."""

from __future__ import annotations

import time

from allranks.report.live import JsonView, View
from allranks.runs.directory import RunDirectory
from allranks.runs.reading import LogReader

PAUSE = 0.2


def follow_run(run: RunDirectory, view: View | JsonView) -> int:
    """Shows what comes from now on; Ctrl-C leaves the run alone. Gives the run's exit code, 0 if left."""
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
            result = run.read_document("result.json")
            if result is not None:
                view.closing(result, result.get("verdict"))
                return int(result["exit"])
            if not run.controller_alive():
                view.event({"t": now, "event": "note", "message": "the controller died: `allranks attach` takes over"})
                return 4
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        print(f"\nleft; the run goes on. To end it: allranks stop {run.name}")
        return 0
