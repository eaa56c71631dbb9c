"""allranks run: start a gang on the target's nodes, watch it, end it, explain it."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import click

from allranks import exitcodes
from allranks.cluster import Cluster
from allranks.engines import NotStarted, PreparedLaunch, engine_for, reach_nodes
from allranks.engines.reachable_nodes import find_cluster
from allranks.errors import AllranksError
from allranks.gang import session as sessions
from allranks.gang.controller import View as Watching
from allranks.gang.transport import NodeReach
from allranks.report.live import JsonView, LiveView
from allranks.runs.directory import RunDirectory
from allranks.runs.opening import take_control
from allranks.runs.result import over_when_interrupted
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved
from allranks.settings.table import settings_of

from .declare import AS_JSON, CONFIG, DRY_RUN, Declared, Given
from .dryrun import describe
from .follow import detach, follow_to_end, print_detached, print_end
from .keys import offer
from .target import refuse_contradictions, require_command, resolve_options, say_notes


def command(typed: Given, config: str | None, dry_run: bool, json_: bool) -> int:
    """Start a run where its target says."""
    resolved = resolve_options(typed, config)
    require_command(resolved)
    spec = resolved.spec
    engine = engine_for(spec, os.environ)
    if engine is not None:
        say_notes(resolved)
        return submit(engine.prepare(spec), spec, json_, dry_run)
    cluster = find_cluster(spec, spares=spec.recovery.spares)
    say_notes(resolved)
    if dry_run:
        refuse_contradictions(spec, cluster)
        click.echo(describe(spec, cluster, json_))
        return exitcodes.DONE
    return launch(resolved, cluster, json_)


COMMAND = Declared(
    "run",
    "Start training on every node, watch it, and end all of it if any part fails.",
    ("run --hosts hosts.txt --nproc 8 train.py --epochs 3",),
    command,
    settings=settings_of("run"),
    command_help="train.py …, -m PACKAGE.MODULE …, or any program. What follows it is the program's",
    options=(CONFIG, DRY_RUN, AS_JSON),
)


def submit(launch: PreparedLaunch, spec: RunSpec, json_: bool, dry_run: bool) -> int:
    """Start a run at an engine and follow it, or show what that would do; gives the exit code."""
    if dry_run:
        click.echo(launch.describe(json_))
        return exitcodes.DONE
    view = make_view(spec, json_)
    try:
        followed = launch.start(view)
    except NotStarted as refused:
        return print_end(refused.run, refused.result, view, json_, page=True)
    if spec.output.detach:
        return detach(followed, spec.output.fold, json_)
    return follow_to_end(followed, view, json_)


def launch(resolved: Resolved, cluster: Cluster, json_: bool) -> int:
    """Runs it here, or leaves a daemon with it; gives the exit code."""
    spec = resolved.spec
    if spec.preflight.end_orphans:
        from .orphans import end_dead_runs

        end_dead_runs(spec, Cluster((*cluster.nodes, *cluster.spares), cluster.source))
    reach = reach_nodes(spec, cluster)
    session = sessions.create(
        spec,
        cluster,
        reach,
        os.environ,
        os.getcwd(),
        lambda: make_view(spec, json_),
        resolved.expected_world_size,
    )
    with over_when_interrupted(session.run_dir):
        session.view.opening(opening(session))
        reach.begin(session)
    if spec.output.detach:
        return _leave(session, json_, reach)
    return go(session, reach, json_)


def go(session: sessions.Session, reach: NodeReach, json_: bool, keys: bool = True) -> int:
    """Runs it to its end here; gives the exit code."""
    try:
        result = session.run(offer if keys and not json_ else None)
    finally:
        reach.end()
    code = close(session, result, json_)
    reach.linger(str((result.get("verdict") or {}).get("cause")))
    return code


def make_view(spec: RunSpec, json_: bool) -> LiveView | JsonView:
    """What the person sees."""
    return JsonView() if json_ else LiveView(fold=spec.output.fold)


def opening(session: sessions.Session) -> dict[str, Any]:
    """What `run` opens with."""
    return {
        "run": session.setting.run,
        "directory": str(session.run_dir.path),
        "command": list(session.spec.launch.command),
        "launcher": session.spec.launch.launcher,
        "source": session.cluster.source,
        "nodes": [{"name": n.name, "host": n.host, "slots": n.slots} for n in session.cluster.nodes],
        "spares": [{"name": n.name, "host": n.host, "slots": n.slots} for n in session.cluster.spares],
    }


def close(session: sessions.Session, result: dict[str, Any], json_: bool) -> int:
    """Prints the end and gives the exit code."""
    if result.get("replaced"):
        name = session.run_dir.name
        sys.stderr.write(f"the run goes on without this terminal: allranks status {name}, logs -f, attach, stop\n")
        return 0
    return print_end(session.run_dir, result, session.view, json_, page=True)


def _leave(session: sessions.Session, json_: bool, reach: NodeReach) -> int:
    """--detach: a daemon holds the lease; this process waits until the ranks have started."""
    run = session.run_dir
    pid = os.fork()
    if pid == 0:
        sessions.detach_stdio(run.path / "controller.log")
        session.take_view(LiveView(fold=session.spec.output.fold))
        take_control(run)
        code = 1
        try:
            code = go(session, reach, False, keys=False)
        finally:
            os._exit(code)
    return _watch_start(run, pid, session.view, json_)


def _watch_start(run: RunDirectory, pid: int, view: Watching, json_: bool) -> int:
    offset = 0
    names = set()
    while True:
        events, offset = run.read_events(offset)
        for event in events:
            view.event(event)
        names |= {e.get("event") for e in events}
        ended = _ended(pid)
        if "rank-started" in names or "run-end" in names or ended:
            break
        time.sleep(0.1)
    result = run.read_document("result.json")
    if result is not None and result.get("exit"):
        if json_:
            click.echo(json.dumps(result))
        view.closing(result, result.get("verdict"))
        return int(result["exit"])
    if result is None and ended:
        raise AllranksError(f"the detached launcher ended at once: see {run.path}/controller.log")
    if not json_:
        view.tick(time.time())
    print_detached(run, json_)
    return 0


def _ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
