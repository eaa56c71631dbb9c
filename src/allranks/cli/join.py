"""allranks join: the same command on every node, in any order; node 0 coordinates."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from typing import Any

import click

from allranks import exitcodes
from allranks.agent.netfacts import interfaces
from allranks.cluster import Cluster
from allranks.engines.join import follow, hello_of, require_loopback, take_secret
from allranks.engines.meeting import Meeting, NoStart, end_sentence, with_ranks_of_each, write_termination
from allranks.engines.signals import SignalWatch
from allranks.errors import AllranksError, UsageError
from allranks.findings import Verdict
from allranks.gang import session as sessions
from allranks.gang.agent_archive import node_zip
from allranks.gang.places import Setting, setup_order
from allranks.gang.plugins import all_checks
from allranks.gang.session import own_environment
from allranks.gang.transport import NodeReach
from allranks.plan.network import never_reached
from allranks.plan.pinned import NodeArguments
from allranks.protocol.facts import NodeFacts
from allranks.protocol.orders import ORDERS
from allranks.report.json_lines import LinesView
from allranks.report.live import LiveView
from allranks.report.sentences import verdict_lines
from allranks.settings import RunSpec
from allranks.settings.layers import Resolved
from allranks.settings.parsers import FLAG, choice
from allranks.settings.table import SUITES, SettingRow, settings_of
from allranks.settings.whereabouts import node_names, whereabouts

from .check import choose, look
from .declare import CONFIG, DRY_RUN, Declared, Given
from .keys import offer
from .run import close, opening
from .target import resolve_options, say_notes
from .test import run_suite

OTHER_FIRST = ("staged", "pairs")  # suites whose groups may have another first node than node 0
VERDICT_CONFIDENCE = 0.9
TERMINATION_LOG = "ALLRANKS_TERMINATION_LOG"
# Fields of a setup message that a node takes from nobody else.
OWN_SETUP = (
    "workdir",
    "command",
    "kind",
    "launching",
    "modules",
    "python",
    "virtual_env",
    "conda_prefix",
    "environ",
    "prelude",
    "nproc",
    "data_paths",
    "expect_gpus",
    "node_dir",
    "output_dir",
)


def command(typed: Given, check_nodes: bool, suite: str | None, config: str | None, dry_run: bool, json_: bool) -> int:
    """Do what this node was started for."""
    resolved = resolve_join(typed, config, check_nodes, suite)
    spec = resolved.spec
    say_notes(resolved)
    if dry_run:
        click.echo(describe(spec, json_))
        return exitcodes.DONE
    secret = take_secret(spec.target.secret_file, os.environ)
    if not secret:
        require_loopback(spec.rendezvous.master_addr or "", spec.target.join_port)
    if spec.target.node_rank == 0:
        return coordinate(resolved, secret, check_nodes, json_)
    return take_part(spec, secret, json_)


COMMAND = Declared(
    "join",
    "Run the same command on every node, in any order: no ssh, any scheduler. One node's failure ends all.",
    ("join --nnodes 2 --node-rank 0 --master-addr node01 train.py",),
    command,
    settings=settings_of("join"),
    command_help="train.py …, -m PACKAGE.MODULE …, or any program. What follows it is the program's",
    options=(
        SettingRow("check_nodes", FLAG, "instead of a command: look at the nodes", options="--check"),
        SettingRow("suite", choice(*SUITES), "instead of a command: collective tests", options="--test"),
        CONFIG,
        DRY_RUN,
        SettingRow("json_", FLAG, "JSON lines. On node 0 they are the run, its result last", options="--json"),
    ),
)


def resolve_join(typed: Given, config: str | None, check_nodes: bool, suite: str | None) -> Resolved:
    """The settings of this node; what is not said comes from the scheduler. Raises UsageError."""
    options = dict(typed)
    for field, value in whereabouts(os.environ).items():
        if options.get(field) is None:
            options[field] = value
    resolved = resolve_options(options, config)
    spec = resolved.spec.changed(test="")
    if suite is not None:
        spec = spec.changed(test="full", suite=suite)
    needed = {"nodes": "--nnodes", "node_rank": "--node-rank", "master_addr": "--master-addr"}
    missing = [name for field, name in needed.items() if spec.value(field) is None]
    if missing:
        raise UsageError(f"join: set {', '.join(missing)} (no scheduler's variables say it)")
    assert spec.target.nodes is not None and spec.target.node_rank is not None
    if spec.target.node_rank >= spec.target.nodes:
        raise UsageError(
            f"--node-rank {spec.target.node_rank}: with --nnodes {spec.target.nodes} it is 0 to {spec.target.nodes - 1}"
        )
    if bool(spec.launch.command) + check_nodes + bool(spec.tests.test) != 1:
        raise UsageError("join: give one of a training command, --check, or --test SUITE")
    here = spec.changed(local=None, hosts=None, sync=False, detach=False)  # of allranks.toml
    return dataclasses.replace(resolved, spec=here)


def describe(spec: RunSpec, json_: bool) -> str:
    """What this node would do."""
    role = (
        "coordinates" if spec.target.node_rank == 0 else f"dials {spec.rendezvous.master_addr}:{spec.target.join_port}"
    )
    what = {
        "node_rank": spec.target.node_rank,
        "nnodes": spec.target.nodes,
        "master_addr": spec.rendezvous.master_addr,
        "port": spec.target.join_port,
        "role": role,
        "command": list(spec.launch.command),
        "nproc": spec.launch.nproc,
    }
    if json_:
        return json.dumps({"schema": 1, **what})
    return "\n".join(f"{key:<12}{value}" for key, value in what.items())


# -- node 0 --------------------------------------------------------------------------------------------


def coordinate(resolved: Resolved, secret: bytes, check: bool, json_: bool) -> int:
    """Meets the others, runs, and tells them how it ended; gives the exit code."""
    spec = resolved.spec
    view = LinesView() if json_ else LiveView(fold=spec.output.fold)
    say = view.say if isinstance(view, LinesView) else _say
    names = node_names(os.environ, spec.rendezvous.master_addr or "", spec.target.nodes or 1)
    meeting = Meeting(spec, hello_of(spec, 0, os.getcwd()), secret, names, say)
    code = exitcodes.NODE_FAILED
    message = "the coordinator failed"
    ending = SignalWatch()
    try:
        meeting.open()
        cluster = meeting.gather(ending.taken)
        if isinstance(cluster, NoStart):
            code = cluster.exit
            message = cluster.finding.message
            return _no_start(meeting, cluster, view)
        ending.throw()
        code, message = _begin(resolved, cluster, meeting, check, view, json_)
        return code
    except AllranksError as error:
        code = error.exit_code
        message = str(error)
        raise
    except KeyboardInterrupt:
        code = exitcodes.CTRL_C
        message = "ended by Ctrl-C on node 0"
        raise
    finally:
        ending.note()  # the others are told, whatever comes now
        meeting.finish(code, message)


def _begin(
    resolved: Resolved, cluster: Cluster, meeting: Meeting, check: bool, view: LiveView | LinesView, json_: bool
) -> tuple[int, str]:
    spec = with_ranks_of_each(resolved.spec, cluster)
    if spec.rendezvous.network or (spec.tests.test and spec.tests.suite in OTHER_FIRST):
        # not the address that was named
        spec = spec.changed(master_addr=None)
    if check or spec.tests.test:
        meeting.on_stop(_stop_here)
    if check:
        code = look(spec, cluster, choose(spec), False, json_, meeting.transport())
        return code, "the check found nothing wrong" if code == 0 else "the check found what node 0 shows"
    if spec.tests.test:
        tests = spec.changed(launcher="direct", retries=0, name="test")
        code = run_suite(tests, cluster, json_, meeting.transport())
        return code, "all tests passed" if code == 0 else "a test failed: see node 0"
    session = sessions.create(
        spec,
        cluster,
        NodeReach(meeting.transport()),
        os.environ,
        os.getcwd(),
        lambda: view,
        resolved.expected_world_size,
    )
    meeting.on_stop(session.stop_from_afar)
    meeting.on_signal(session.signal_at_node)
    view.opening(opening(session))
    result = session.run(None if json_ else offer)
    code = close(session, result, False)
    message = end_sentence(result)
    _terminate(result.get("verdict"), message)
    return code, message


def _stop_here(reason: str) -> None:
    """A node wants the end of a check or a test: as if this one had got the signal."""
    os.kill(os.getpid(), signal.SIGINT if reason == "ctrl-c" else signal.SIGTERM)


def _no_start(meeting: Meeting, ended: NoStart, view: LiveView | LinesView) -> int:
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
    assert spec.target.node_rank is not None
    node_zip(tuple(all_checks()))  # made now: the relay starts the faster
    hello = hello_of(spec, spec.target.node_rank, os.getcwd())
    places = [(spec.rendezvous.master_addr or "", spec.target.join_port)]
    say = _say_line if json_ else _say
    who = f"node {spec.target.node_rank} of {spec.target.nodes} ({hello.hostname})"
    say(f"{who}: dialling {places[0][0]}:{places[0][1]}")
    outcome = follow(spec, own_of(spec), secret, hello, places, say)
    finding = None
    if outcome.tried:
        facts = NodeFacts(interfaces=tuple(interfaces()))
        finding = never_reached(hello.hostname, spec, facts, outcome.tried)
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


def own_of(spec: RunSpec) -> NodeArguments:
    """What this node takes from nobody else: its command, directory, interpreter, environment."""
    setting = Setting(
        run="",
        uid="",
        token="",
        workdir=os.getcwd(),
        run_outputs="",
        virtual_env=os.environ.get("VIRTUAL_ENV") or own_environment(),
        conda_prefix=os.environ.get("CONDA_PREFIX"),
    )
    message = ORDERS.write(setup_order(spec, setting))
    return NodeArguments(spec, {key: message[key] for key in OWN_SETUP}, tuple(all_checks()))
