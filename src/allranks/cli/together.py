"""One gang of all nodes that runs collective tests: start, end, what is printed and saved."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from allranks import exitcodes
from allranks.cluster import Cluster
from allranks.engines.controlled import opening
from allranks.findings import Finding
from allranks.gang import session as sessions
from allranks.gang.tested import verdict_of
from allranks.gang.transport import NodeReach, Transport
from allranks.report.live import JsonView
from allranks.report.testview import TestView
from allranks.runs.result import replace_result
from allranks.settings import RunSpec

SYNC_PASSED = (
    "every collective that was tested gives right results on all ranks: the cluster carries collectives. Look at the "
    "training code"
)


def run_together(
    spec: RunSpec,
    cluster: Cluster,
    json_: bool,
    transport: Transport,
    before: Sequence[Finding] = (),
    dead: tuple[tuple[str, str], ...] = (),
) -> int:
    """One gang of all nodes; gives the exit code. `before` has findings that are known already."""
    view = JsonView() if json_ else TestView()
    session = sessions.create(spec, cluster, NodeReach(transport), os.environ, os.getcwd(), lambda: view, dead=dead)
    session.view.opening(opening(session))
    result = session.run(None)
    result["findings"] = [f.to_json() for f in before] + list(result.get("findings") or [])
    if before and result["exit"] == exitcodes.DONE:
        result.update(exit=exitcodes.CHECK_FAILED, verdict=verdict_of(before[0]).to_json())
    return close(spec, session, result, json_)


def close(spec: RunSpec, session: sessions.Session, result: dict[str, Any], json_: bool) -> int:
    """Prints and saves the end; gives the exit code."""
    from allranks.report.testpage import test_page

    gang = session.controller.gang
    run = session.run_dir
    result = {**result, "suite": spec.tests.suite, "ok": result["exit"] == exitcodes.DONE, "started": session.started}
    if spec.tests.suite == "sync" and result["ok"]:
        result["meaning"] = SYNC_PASSED
    result.update(nodes=[n.name for n in gang.roster.cluster.nodes], ranks=len(gang.roster.ranks()))
    replace_result(run, result)
    (run.path / "report.html").write_text(test_page(result), encoding="utf-8")
    if json_:
        sys.stdout.write(json.dumps({"schema": 1, **result}) + "\n")
    session.view.closing(result, result.get("verdict"))
    return int(result["exit"])
