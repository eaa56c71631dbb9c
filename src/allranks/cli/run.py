"""allranks run: start a gang on the target's nodes, watch it, end it, explain it."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from allranks.cluster import Cluster
from allranks.cluster.slurm import read_allocation
from allranks.diagnose.slurm import LIMIT
from allranks.errors import AllranksError
from allranks.gang import session as sessions
from allranks.gang.controller import View as Watching
from allranks.report.live import JsonView, View
from allranks.runs.directory import RunDirectory
from allranks.runs.result import over_when_interrupted
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved

from . import exits
from .allocated import Reach, allocated
from .dryrun import describe
from .engines import engine_options, pods, targets
from .keys import offer
from .options import BEHAVIOUR, CHECKS, HOW, NETWORK, PLACES, TARGET, TIMES, Text, option, split_words
from .target import find_cluster, require_command, resolve_options, say_notes


@engine_options(targets, pods)
def command(
    command: Annotated[list[str] | None, typer.Argument(help="after --: train.py …, -m pkg …, or any program")] = None,
    local: Annotated[int | None, option("--local", TARGET, "N virtual nodes on this machine", "N")] = None,
    hosts: Annotated[Text, option("--hosts", TARGET, "hostfile, or a list: h1,h2 or node[01-04]", "FILE|LIST")] = None,
    slurm: Annotated[bool | None, option("--slurm", TARGET, "the allocation we are in, else submit a job")] = None,
    partition: Annotated[Text, option("--partition", TARGET, "of the job that --slurm submits", "NAME")] = None,
    sbatch: Annotated[list[str] | None, option("--sbatch", TARGET, "further options of sbatch", "OPTIONS")] = None,
    nodes: Annotated[int | None, option("--nodes", TARGET, "the first N hosts; of a new job: how many", "N")] = None,
    nproc: Annotated[Text, option("--nproc", TARGET, "ranks a node, or auto: slots, else GPUs, else 1", "K")] = None,
    launcher: Annotated[Text, option("--launcher", HOW, "direct, torchrun, accelerate, deepspeed, …", "NAME")] = None,
    python: Annotated[Text, option("--python", HOW, "training interpreter on the nodes", "PATH")] = None,
    guard_python: Annotated[Text, option("--guard-python", HOW, "Python >= 3.8 for allranks' guard", "PATH")] = None,
    workdir: Annotated[Text, option("--workdir", HOW, "working directory on the nodes (default: this one)")] = None,
    sync: Annotated[bool | None, option("--sync", HOW, "ship your working tree to the nodes, run it there")] = None,
    prelude: Annotated[Text, option("--prelude", HOW, "shell lines before the ranks: conda activate …")] = None,
    wrap: Annotated[Text, option("--wrap", HOW, "goes around each rank: 'apptainer exec --nv IMG'")] = None,
    env: Annotated[list[str] | None, option("--env", HOW, "set K=V, or forward NAME from here", "K=V|NAME")] = None,
    ssh_options: Annotated[list[str] | None, option("--ssh-option", HOW, "as ssh's -o", "KEY=VALUE")] = None,
    network: Annotated[Text, option("--network", NETWORK, "network of the master address", "CIDR")] = None,
    master_addr: Annotated[Text, option("--master-addr", NETWORK, "default: chosen, and proved")] = None,
    master_port: Annotated[int | None, option("--master-port", NETWORK, "0: a free one (default)")] = None,
    no_check: Annotated[bool, option("--no-check", CHECKS, "do not look at the nodes before ranks start")] = False,
    allow: Annotated[list[str] | None, option("--allow", CHECKS, "a failure that does not stop the run", "ID")] = None,
    data_paths: Annotated[list[str] | None, option("--data-path", CHECKS, "must be on all nodes", "PATH")] = None,
    expect_gpus: Annotated[int | None, option("--expect-gpus", CHECKS, "GPUs a node has (--nproc)", "K")] = None,
    test: Annotated[Text, option("--test", CHECKS, "quick: collective tests first, a few seconds", "quick")] = None,
    lease: Annotated[Text, option("--lease", TIMES, "ranks live this long without allranks (60s)")] = None,
    grace: Annotated[Text, option("--grace", TIMES, "SIGTERM to SIGKILL after a failure (1s)")] = None,
    stop_grace: Annotated[Text, option("--stop-grace", TIMES, "SIGTERM to SIGKILL at stop, Ctrl-C (30s)")] = None,
    connect_timeout: Annotated[Text, option("--connect-timeout", TIMES, "to reach a node (12s)")] = None,
    init_timeout: Annotated[Text, option("--init-timeout", TIMES, "until all ranks have initialised (10m)")] = None,
    hang_timeout: Annotated[Text, option("--hang-timeout", TIMES, "nothing moves: look at every rank (10m)")] = None,
    pg_timeout: Annotated[Text, option("--pg-timeout", TIMES, "of the process groups, over the script's own")] = None,
    name: Annotated[Text, option("--name", PLACES, "first part of the run directory's name (run)")] = None,
    runs_dir: Annotated[Text, option("--runs-dir", PLACES, "where run directories go (runs)")] = None,
    node_dir: Annotated[Text, option("--node-dir", PLACES, "scratch directory on the nodes (/tmp)")] = None,
    output_dir: Annotated[Text, option("--output-dir", PLACES, "shared ALLRANKS_OUTPUT_DIR of the ranks")] = None,
    config: Annotated[Text, option("--config", PLACES, "settings file (allranks.toml)")] = None,
    retries: Annotated[int | None, option("--retries", BEHAVIOUR, "again after what may pass (0)")] = None,
    spares: Annotated[int | None, option("--spares", BEHAVIOUR, "the last K hosts stand by", "K")] = None,
    hang_pattern: Annotated[Text, option("--hang-pattern", TIMES, "logs must say it again within that time")] = None,
    on_hang: Annotated[Text, option("--on-hang", BEHAVIOUR, "stop (default), report, or restart", "WHAT")] = None,
    audit_data: Annotated[int | None, option("--audit-data", BEHAVIOUR, "first N batches: is it split?", "N")] = None,
    on_audit: Annotated[Text, option("--on-audit", BEHAVIOUR, "data not split: report, or stop", "WHAT")] = None,
    debug: Annotated[bool | None, option("--debug", BEHAVIOUR, "NCCL_DEBUG=INFO, TORCH_DISTRIBUTED_DEBUG")] = None,
    step_pattern: Annotated[Text, option("--step-pattern", BEHAVIOUR, r"finds the step in logs: 'step (\d+)'")] = None,
    no_fold: Annotated[bool, option("--no-fold", BEHAVIOUR, "show identical lines of all ranks")] = False,
    end_leftovers: Annotated[bool | None, option("--end-leftovers", BEHAVIOUR, "first end what dead runs left")] = None,
    detach: Annotated[bool | None, option("--detach", BEHAVIOUR, "go on without this terminal")] = None,
    dry_run: Annotated[bool, option("--dry-run", BEHAVIOUR, "print what would be done, do nothing")] = False,
    json_: Annotated[bool, option("--json", BEHAVIOUR, "one JSON document on stdout")] = False,
    **engines: Any,
) -> None:
    """Start training on every node, watch it, and end all of it if any part fails.

    Example: allranks run --hosts hosts.txt --nproc 8 -- train.py --epochs 3
    """
    raise typer.Exit(_carry_out(dict(locals())))


def _carry_out(given: dict[str, Any]) -> int:
    """Does what the options, as they were given, say, where the target says; gives the exit code."""
    config, json_, dry_run = given.pop("config"), given.pop("json_"), given.pop("dry_run")
    given.update(fold=False if given.pop("no_fold") else None, check=False if given.pop("no_check") else None)
    given.update(given.pop("engines"), allow=split_words(given["allow"]))
    resolved = resolve_options(given, config)
    require_command(resolved)
    spec = resolved.spec
    if spec.slurm and read_allocation(os.environ) is None:
        from .submitted import submit

        say_notes(resolved, json_)
        return submit(dataclasses.replace(spec, dry_run=dry_run), json_)
    if spec.k8s or spec.sky:
        from .afar import run_afar

        say_notes(resolved, json_)
        return run_afar(spec, json_, dry_run)
    cluster = find_cluster(resolved, spares=spec.spares)
    say_notes(resolved, json_)
    if dry_run:
        typer.echo(describe(spec, cluster, json_))
        return 0
    return launch(resolved, cluster, json_)


def launch(resolved: Resolved, cluster: Cluster, json_: bool) -> int:
    """Runs it here, or leaves a daemon with it; gives the exit code."""
    spec = resolved.spec
    if spec.end_leftovers:
        from .leftovers import end_dead_runs

        end_dead_runs(spec, Cluster((*cluster.nodes, *cluster.spares), cluster.source))
    reach = allocated(spec, cluster)
    session = sessions.create(
        spec, cluster, os.environ, os.getcwd(), lambda: make_view(spec, json_), resolved.expected_world_size,
        transport=reach.transport if reach else None, engine=reach.engine if reach else None,
    )  # fmt: skip
    with over_when_interrupted(session.run_dir):
        session.view.opening(opening(session))
        if reach is not None:
            reach.begin(session)
    if spec.detach:
        return _leave(session, json_, reach)
    return go(session, reach, json_)


def go(session: sessions.Session, reach: Reach | None, json_: bool, keys: bool = True) -> int:
    """Runs it to its end here; gives the exit code."""
    try:
        result = session.run(offer if keys and not json_ else None)
    finally:
        if reach is not None:
            reach.end()
    code = close(session, result, json_)
    if reach is not None and (result.get("verdict") or {}).get("cause") == LIMIT:
        reach.engine.linger()
    return code


def make_view(spec: RunSpec, json_: bool) -> View | JsonView:
    """What the person sees."""
    return JsonView() if json_ else View(fold=spec.fold)


def opening(session: sessions.Session) -> dict[str, Any]:
    """What `run` opens with."""
    return {
        "run": session.setting.run,
        "directory": str(session.run_dir.path),
        "command": list(session.spec.command),
        "launcher": session.spec.launcher,
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
    if json_:
        sys.stdout.write(json.dumps({"schema": 1, **result}) + "\n")
    session.view.closing(result, result.get("verdict"))
    code = int(result["exit"])
    leave_page(session.run_dir, code, json_)
    return code


def leave_page(run: RunDirectory, code: int, json_: bool) -> None:
    """report.html of a run that failed; allranks.pyz, which has no Jinja2, leaves none."""
    if code in (exits.DONE, exits.CTRL_C, exits.TERMINATED) or find_spec("jinja2") is None:
        return
    from .report import page_at_end

    page = page_at_end(run)
    if page is not None and not json_:
        sys.stdout.write(f"page {page}\n")


def _leave(session: sessions.Session, json_: bool, reach: Reach | None) -> int:
    """--detach: a daemon holds the lease; this process waits until the ranks have started."""
    run = session.run_dir
    pid = os.fork()
    if pid == 0:
        sessions.detach_stdio(run.path / "controller.log")
        session.take_view(View(fold=session.spec.fold))
        document = run.read_document("run.json") or {}
        run.write_document("run.json", {**document, "controller": sessions.controller_identity()})
        code = 1
        try:
            code = go(session, reach, False, keys=False)
        finally:
            os._exit(code)
    return _watch_start(run, pid, session.view, json_)


def _watch_start(run: RunDirectory, pid: int, view: Watching, json_: bool) -> int:
    offset, names = 0, set()
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
            typer.echo(json.dumps(result))
        view.closing(result, result.get("verdict"))
        return int(result["exit"])
    if result is None and ended:
        raise AllranksError(f"the detached launcher ended at once: see {run.path}/controller.log")
    document = {"schema": 1, "run": run.name, "directory": str(run.path), "detached": True, "exit": 0}
    if json_:
        typer.echo(json.dumps(document))
    else:
        view.tick(time.time())
        typer.echo(f"detached: allranks status {run.name} · logs -f · attach · stop")
    return 0


def _ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
