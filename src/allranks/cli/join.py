"""allranks join: the same command on every node, in any order; node 0 coordinates."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys

from allranks import exitcodes
from allranks.cluster.schedulers import whereabouts
from allranks.engines import NotStarted
from allranks.engines.joined import JoinLaunch, NodeEnd, NodeResult
from allranks.errors import UsageError
from allranks.protocol.codec import document_line
from allranks.report.live import choose_view
from allranks.report.sentences import verdict_lines
from allranks.runs.documents import ResultDocument
from allranks.runs.replay import LinesView
from allranks.runs.view import View
from allranks.settings.layers import Resolved
from allranks.settings.roles import deal, refuse_sharing

from .check import Printing, choose, look
from .declare import Given
from .follow import follow_to_end
from .target import resolve_options, say_notes
from .test import run_suite


def command(typed: Given, check_nodes: bool, suite: str | None, config: str | None, quiet: bool, json_: bool) -> int:
    """Do what this node was started for."""
    resolved = resolve_join(typed, config, check_nodes, suite)
    spec = resolved.spec
    say_notes(resolved)
    launch = JoinLaunch(resolved)
    coordinates = spec.target.node_rank == 0
    if not coordinates:
        view: View = NodeView(json_, quiet)
    elif json_:
        view = LinesView()
    else:
        view = choose_view(False, spec.output.fold, quiet)
    try:
        if coordinates and (check_nodes or spec.tests.test):
            return on_met_nodes(launch, view, check_nodes, Printing(json_, quiet))
        return follow_to_end(launch.start(view), view, json_, prints_document=False)
    except NotStarted as refused:
        view.closing(refused.result)
        return refused.result.exit


def resolve_join(typed: Given, config: str | None, check_nodes: bool, suite: str | None) -> Resolved:
    """Resolve the settings of this node; the scheduler's variables fill in what was not set. Raise UsageError."""
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
        raise UsageError(
            f"join: set {', '.join(missing)} (no scheduler's variables say it)\n"
            "hint: allranks join --nnodes 2 --node-rank 0 --master-addr node01 train.py   # on node01, the first of two"
        )
    assert spec.target.nodes is not None and spec.target.node_rank is not None  # they are not missing
    if spec.target.node_rank >= spec.target.nodes:
        raise UsageError(
            f"--node-rank {spec.target.node_rank}: with --nnodes {spec.target.nodes} it is 0 to {spec.target.nodes - 1}"
        )
    if check_nodes or spec.tests.test:
        spec = spec.with_roles(())
    roles = spec.launch.roles
    nodes = spec.target.nodes or 1
    if roles:  # of which a node would have none, or two
        refuse_sharing(spec, "a node that joins")
        dealt = sum(len(places) for places in deal(roles, nodes, f"--nnodes {nodes}").values())
        if dealt != nodes:
            raise UsageError(f"--nnodes {nodes}: the roles have {dealt} nodes, and a node that joins has one of them")
    if bool(spec.launch.command or spec.launch.roles) + check_nodes + bool(spec.tests.test) != 1:
        raise UsageError("join: give one of a training command, --check, or --test SUITE")
    here = spec.changed(local=None, hosts=None, sync=False, detach=False)  # of allranks.toml
    return dataclasses.replace(resolved, spec=here)


def on_met_nodes(launch: JoinLaunch, view: View, check: bool, printing: Printing) -> int:
    """Check or test the nodes that come, and tell them how it ended; give the exit code."""
    meeting = launch.meet(view)
    with meeting.failure_is_sent():
        cluster = meeting.gather()
        spec = meeting.spec_on(cluster)
        # A node that wants the end ends this process, as if it had got the signal.
        meeting.on_stop(lambda why: os.kill(os.getpid(), signal.SIGINT if why == "ctrl-c" else signal.SIGTERM))
        if check:
            code = look(spec, cluster, choose(spec), printing, meeting.transport())
            message = "the check found what node 0 shows" if code else "the check found nothing wrong"
        else:
            tests = spec.changed(launcher="direct", retries=0, name="test")
            code = run_suite(tests, cluster, printing, meeting.transport())
            message = "a test failed: see node 0" if code else "all tests passed"
    meeting.finish(code, message)
    return code


class NodeView(View):
    """What a node shows that is not the first: how it meets node 0, and how the run ended."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self._as_json = as_json
        self._quiet = quiet and not as_json

    def say(self, label: str, text: str) -> None:
        """Show a line."""
        if self._quiet:
            return
        line = json.dumps({"say": text}) if self._as_json else f"{label:<10}{text}"
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def closing(self, result: ResultDocument) -> None:
        """Show the end: as node 0 has it, or why this node never reached node 0."""
        assert isinstance(result, NodeResult)  # of JoinedNode, which this view is for
        if self._as_json:
            sys.stdout.write(document_line(NodeEnd(result.exit, result.message, result.verdict)) + "\n")
            return
        self._quiet = self._quiet and result.exit == exitcodes.DONE
        for line in verdict_lines(result.verdict) if result.verdict is not None else [result.message]:
            self.say("join", line)
