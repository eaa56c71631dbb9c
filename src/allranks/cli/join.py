"""allranks join: the same command on every node, in any order; node 0 coordinates."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from typing import Annotated, Any

import typer

from allranks.backends.bundle import node_zip
from allranks.backends.join import agreed, follow, hello_of, require_loopback, take_secret
from allranks.backends.plugins import all_checks
from allranks.cluster import Cluster
from allranks.errors import AllranksError, UsageError
from allranks.findings import Verdict
from allranks.gang import session as sessions
from allranks.gang.joining import Meeting, NoStart, end_sentence, with_ranks_of_each, write_termination
from allranks.gang.places import Setting, setup_message
from allranks.gang.session import own_environment
from allranks.node.netfacts import interfaces
from allranks.plan.network import never_reached
from allranks.plan.pinned import Own
from allranks.report.lines import LinesView
from allranks.report.live import View
from allranks.report.text import verdict_lines
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved
from allranks.settings.whereabouts import node_names, whereabouts

from . import exits
from .check import choose, look
from .keys import offer
from .options import BEHAVIOUR, CHECKS, HOW, NETWORK, PLACES, TIMES, Text, option, split_words
from .run import close, opening
from .signals import Ending
from .target import resolve_options, say_notes
from .test import run_suite

MEETING = "Meeting"
OTHER_FIRST = ("staged", "pairs")  # suites whose groups may have another first node than node 0
VERDICT_CONFIDENCE = 0.9
TERMINATION_LOG = "ALLRANKS_TERMINATION_LOG"
# Fields of a setup message that a node takes from nobody else.
OWN_SETUP = (
    "workdir", "command", "kind", "launching", "modules", "python", "virtual_env", "conda_prefix", "environ", "prelude",
    "nproc", "data_paths", "expect_gpus", "node_dir", "output_dir",
)  # fmt: skip


def command(
    command: Annotated[list[str] | None, typer.Argument(help="after --: train.py …, -m pkg …, or any program")] = None,
    nnodes: Annotated[int | None, option("--nnodes", MEETING, "how many nodes (or the scheduler says)", "N")] = None,
    node_rank: Annotated[int | None, option("--node-rank", MEETING, "this one, 0 to N-1 (same)", "R")] = None,
    master_addr: Annotated[Text, option("--master-addr", MEETING, "node 0, as all nodes reach it")] = None,
    port: Annotated[int | None, option("--port", MEETING, "node 0 listens here for the others (29400)")] = None,
    secret_file: Annotated[Text, option("--secret-file", MEETING, "or ALLRANKS_JOIN_SECRET; all the same", "F")] = None,
    check: Annotated[bool, option("--check", MEETING, "instead of a command: look at the nodes")] = False,
    test: Annotated[Text, option("--test", MEETING, "instead of a command: sync, bandwidth, pairs, staged")] = None,
    nproc: Annotated[Text, option("--nproc", HOW, "ranks on this node, or auto: GPUs, else 1", "K")] = None,
    launcher: Annotated[Text, option("--launcher", HOW, "direct, torchrun, or command (once a node)", "NAME")] = None,
    python: Annotated[Text, option("--python", HOW, "training interpreter", "PATH")] = None,
    workdir: Annotated[Text, option("--workdir", HOW, "working directory (default: this one)")] = None,
    prelude: Annotated[Text, option("--prelude", HOW, "shell lines before the ranks: conda activate …")] = None,
    wrap: Annotated[Text, option("--wrap", HOW, "goes around each rank: 'apptainer exec --nv IMG'")] = None,
    env: Annotated[list[str] | None, option("--env", HOW, "set K=V in this node's ranks", "K=V|NAME")] = None,
    network: Annotated[Text, option("--network", NETWORK, "the ranks' network, not --master-addr's", "CIDR")] = None,
    master_port: Annotated[int | None, option("--master-port", NETWORK, "the ranks'; 0: a free one (default)")] = None,
    no_check: Annotated[bool, option("--no-check", CHECKS, "do not look at the nodes before ranks start")] = False,
    level: Annotated[Text, option("--level", CHECKS, "of --check: quick or full (default)", "LEVEL")] = None,
    only: Annotated[list[str] | None, option("--only", CHECKS, "these checks or tests alone", "ID")] = None,
    allow: Annotated[list[str] | None, option("--allow", CHECKS, "a failure that does not stop the run", "ID")] = None,
    data_paths: Annotated[list[str] | None, option("--data-path", CHECKS, "must be on all nodes", "PATH")] = None,
    expect_gpus: Annotated[int | None, option("--expect-gpus", CHECKS, "GPUs a node has (--nproc)", "K")] = None,
    size: Annotated[Text, option("--size", CHECKS, "of --test: largest payload a rank (256MB)", "SIZE")] = None,
    timeout: Annotated[Text, option("--timeout", CHECKS, "of --test: limit of each test (60s)", "TIME")] = None,
    lease: Annotated[Text, option("--lease", TIMES, "ranks live this long without node 0 (60s)")] = None,
    grace: Annotated[Text, option("--grace", TIMES, "SIGTERM to SIGKILL after a failure (1s)")] = None,
    stop_grace: Annotated[Text, option("--stop-grace", TIMES, "SIGTERM to SIGKILL at stop, Ctrl-C (30s)")] = None,
    init_timeout: Annotated[Text, option("--init-timeout", TIMES, "until all nodes and ranks are there (10m)")] = None,
    hang_timeout: Annotated[Text, option("--hang-timeout", TIMES, "nothing moves: look at every rank (10m)")] = None,
    pg_timeout: Annotated[Text, option("--pg-timeout", TIMES, "of the process groups, over the script's own")] = None,
    name: Annotated[Text, option("--name", PLACES, "first part of the run directory's name (run)")] = None,
    runs_dir: Annotated[Text, option("--runs-dir", PLACES, "where node 0 puts run directories (runs)")] = None,
    node_dir: Annotated[Text, option("--node-dir", PLACES, "scratch directory (/tmp)")] = None,
    output_dir: Annotated[Text, option("--output-dir", PLACES, "shared ALLRANKS_OUTPUT_DIR of the ranks")] = None,
    config: Annotated[Text, option("--config", PLACES, "settings file (allranks.toml)")] = None,
    retries: Annotated[int | None, option("--retries", BEHAVIOUR, "further attempts after a failure (0)")] = None,
    on_hang: Annotated[Text, option("--on-hang", BEHAVIOUR, "stop (default), or report and go on", "WHAT")] = None,
    debug: Annotated[bool | None, option("--debug", BEHAVIOUR, "NCCL_DEBUG=INFO, TORCH_DISTRIBUTED_DEBUG")] = None,
    step_pattern: Annotated[Text, option("--step-pattern", BEHAVIOUR, r"finds the step in logs: 'step (\d+)'")] = None,
    no_fold: Annotated[bool, option("--no-fold", BEHAVIOUR, "show identical lines of all ranks")] = False,
    dry_run: Annotated[bool, option("--dry-run", BEHAVIOUR, "print who this node is and what it would do")] = False,
    json_: Annotated[bool, option("--json", BEHAVIOUR, "JSON lines; on node 0 the run, its result last")] = False,
) -> None:
    """Run the same command on every node, in any order: no ssh, any scheduler. One node's failure ends all.

    Example: allranks join --nnodes 2 --node-rank 0 --master-addr node01 -- train.py
    """
    raise typer.Exit(_carry_out(dict(locals())))


def _carry_out(given: dict[str, Any]) -> int:
    """Does what the options, as they were given, say; gives the exit code."""
    config, json_, dry_run, check = (given.pop(k) for k in ("config", "json_", "dry_run", "check"))
    given.update(nodes=given.pop("nnodes"), join_port=given.pop("port"), suite=given["test"])
    given.update(allow=split_words(given["allow"]), only=split_words(given["only"]))
    given.update(fold=False if given.pop("no_fold") else None, check=False if given.pop("no_check") else None)
    given["test"] = "full" if given["test"] else None
    resolved = resolve_join(given, config, check)
    spec = resolved.spec
    say_notes(resolved, json_)
    if dry_run:
        typer.echo(describe(spec, json_))
        return exits.DONE
    secret = take_secret(spec.secret_file, os.environ)
    if not secret:
        require_loopback(spec.master_addr or "", spec.join_port)
    return coordinate(resolved, secret, check, json_) if spec.node_rank == 0 else take_part(spec, secret, json_)


def resolve_join(given: dict[str, Any], config: str | None, check: bool) -> Resolved:
    """The settings of this node; what is not said comes from the scheduler. Raises UsageError."""
    for field, value in whereabouts(os.environ).items():
        if given.get(field) is None:
            given[field] = value
    resolved = resolve_options(given, config)
    spec = resolved.spec
    wanted = {"nodes": "--nnodes", "node_rank": "--node-rank", "master_addr": "--master-addr"}
    missing = [name for field, name in wanted.items() if getattr(spec, field) is None]
    if missing:
        raise UsageError(f"join: set {', '.join(missing)} (no scheduler's variables say it)")
    assert spec.nodes is not None and spec.node_rank is not None
    if spec.node_rank >= spec.nodes:
        raise UsageError(f"--node-rank {spec.node_rank}: with --nnodes {spec.nodes} it is 0 to {spec.nodes - 1}")
    if bool(spec.command) + check + bool(spec.test) != 1:
        raise UsageError("join: give one of a training command after --, --check, or --test SUITE")
    here = dataclasses.replace(spec, local=None, hosts=None, sync=False, detach=False)  # of allranks.toml
    return dataclasses.replace(resolved, spec=here)


def describe(spec: RunSpec, json_: bool) -> str:
    """What this node would do."""
    role = "coordinates" if spec.node_rank == 0 else f"dials {spec.master_addr}:{spec.join_port}"
    what = {"node_rank": spec.node_rank, "nnodes": spec.nodes, "master_addr": spec.master_addr,
            "port": spec.join_port, "role": role, "command": list(spec.command), "nproc": spec.nproc}  # fmt: skip
    if json_:
        return json.dumps({"schema": 1, **what})
    return "\n".join(f"{key:<12}{value}" for key, value in what.items())


# -- node 0 --------------------------------------------------------------------------------------------


def coordinate(resolved: Resolved, secret: bytes, check: bool, json_: bool) -> int:
    """Meets the others, runs, and tells them how it ended; gives the exit code."""
    spec = resolved.spec
    view = LinesView() if json_ else View(fold=spec.fold)
    say = view.say if isinstance(view, LinesView) else _say
    names = node_names(os.environ, spec.master_addr or "", spec.nodes or 1)
    meeting = Meeting(spec, agreed(spec, os.getcwd()), secret, names, say)
    code, message = exits.NODE_FAILED, "the coordinator failed"
    ending = Ending()
    try:
        meeting.open()
        cluster = meeting.gather(ending.taken)
        if isinstance(cluster, NoStart):
            code, message = cluster.exit, cluster.finding.message
            return _no_start(meeting, cluster, view)
        ending.throw()
        code, message = _begin(resolved, cluster, meeting, check, view, json_)
        return code
    except AllranksError as error:
        code, message = error.exit_code, str(error)
        raise
    except KeyboardInterrupt:
        code, message = exits.CTRL_C, "ended by Ctrl-C on node 0"
        raise
    finally:
        ending.note()  # the others are told, whatever comes now
        meeting.finish(code, message)


def _begin(
    resolved: Resolved, cluster: Cluster, meeting: Meeting, check: bool, view: View | LinesView, json_: bool
) -> tuple[int, str]:
    spec = with_ranks_of_each(resolved.spec, cluster)
    if spec.network or (spec.test and spec.suite in OTHER_FIRST):  # not the address that was named
        spec = dataclasses.replace(spec, master_addr=None)
    if check or spec.test:
        meeting.on_stop(_stop_here)
    if check:
        code = look(spec, cluster, choose(spec), False, json_, meeting.transport())
        return code, "the check found nothing wrong" if code == 0 else "the check found what node 0 shows"
    if spec.test:
        tests = dataclasses.replace(spec, launcher="direct", retries=0, name="test")
        code = run_suite(tests, cluster, json_, meeting.transport())
        return code, "all tests passed" if code == 0 else "a test failed: see node 0"
    session = sessions.create(
        spec, cluster, os.environ, os.getcwd(), lambda: view, resolved.expected_world_size,
        transport=meeting.transport(),
    )  # fmt: skip
    meeting.on_stop(session.stop_from_afar)
    meeting.on_signal(session.signal_at_node)
    view.opening(opening(session))
    result = session.run(None if json_ else offer)
    code, message = close(session, result, False), end_sentence(result)
    _terminate(result.get("verdict"), message)
    return code, message


def _stop_here(reason: str) -> None:
    """A node wants the end of a check or a test: as if this one had got the signal."""
    os.kill(os.getpid(), signal.SIGINT if reason == "ctrl-c" else signal.SIGTERM)


def _no_start(meeting: Meeting, ended: NoStart, view: View | LinesView) -> int:
    run = meeting.no_start(ended)
    result = run.read_document("result.json") or {}
    view.closing(result, result.get("verdict"))
    _terminate(result.get("verdict"), ended.finding.message)
    return ended.exit


def _terminate(verdict: dict[str, Any] | None, message: str) -> None:
    path = os.environ.get(TERMINATION_LOG)
    if path:
        write_termination(path, verdict, message)


def _say(text: str) -> None:
    sys.stdout.write(f"join      {text}\n")
    sys.stdout.flush()


# -- the other nodes -----------------------------------------------------------------------------------


def take_part(spec: RunSpec, secret: bytes, json_: bool) -> int:
    """Dials node 0 and does what this node was started for; gives the run's exit code."""
    assert spec.node_rank is not None
    node_zip(tuple(all_checks()))  # made now: the relay starts the faster
    hello = hello_of(spec, spec.node_rank, agreed(spec, os.getcwd()))
    places = [(spec.master_addr or "", spec.join_port)]
    say = _say_line if json_ else _say
    say(f"node {spec.node_rank} of {spec.nodes} ({hello['hostname']}): dialling {places[0][0]}:{places[0][1]}")
    outcome = follow(spec, own_of(spec), secret, hello, places, say)
    finding = never_reached(str(hello["hostname"]), spec, interfaces(), outcome.tried) if outcome.tried else None
    verdict = Verdict(finding, finding.id, VERDICT_CONFIDENCE).to_json() if finding is not None else None
    message = finding.message if finding is not None else outcome.message
    _terminate(verdict, message)
    if json_:
        document = {"schema": 1, "exit": outcome.exit, "message": message}
        sys.stdout.write(json.dumps({**document, "verdict": verdict} if verdict else document) + "\n")
    elif verdict is not None:
        for line in (f"{outcome.message}", *verdict_lines(verdict)):
            _say(line)
    else:
        _say(message)
    return outcome.exit


def _say_line(text: str) -> None:
    sys.stdout.write(json.dumps({"say": text}) + "\n")
    sys.stdout.flush()


def own_of(spec: RunSpec) -> Own:
    """What this node takes from nobody else: its command, directory, interpreter, environment."""
    setting = Setting(
        run="", uid="", token="", workdir=os.getcwd(), run_outputs="",
        virtual_env=os.environ.get("VIRTUAL_ENV") or own_environment(), conda_prefix=os.environ.get("CONDA_PREFIX"),
    )  # fmt: skip
    message = setup_message(spec, setting)
    return Own(spec, {key: message[key] for key in OWN_SETUP}, tuple(all_checks()))
