"""allranks test: collective tests on the target's nodes, and which node or link is to blame."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from allranks import exitcodes
from allranks.cluster import Cluster
from allranks.engines.controlled import opening
from allranks.engines.dry_run import describe
from allranks.engines.reachable_nodes import find_cluster, reached
from allranks.errors import UsageError
from allranks.fabric.analysis.schedule import ALL_PASSED, Group, SuiteStage, group_name, stages
from allranks.findings import Finding
from allranks.gang import session as sessions
from allranks.gang.inspection import judge_evidence, look_at_nodes
from allranks.gang.plugins import all_checks
from allranks.gang.session import run_round
from allranks.gang.tasks import run_loop
from allranks.gang.tested import verdict_of
from allranks.gang.transport import NodeReach, Transport
from allranks.plan.launchers.collectives import of_a_stage
from allranks.preflight.peer_pairs import Pair, tried
from allranks.preflight.typed_facts import Facts
from allranks.protocol.codec import document_line
from allranks.report import can_write_pages
from allranks.report.live import OutputView
from allranks.report.sentences import end_word, finding_line
from allranks.report.testview import FailureView, TestView
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import GroupResult, ResultDocument, StageResult, SuiteResult, suite_result
from allranks.runs.result import replace_result
from allranks.runs.view import View
from allranks.settings import RunSpec
from allranks.settings.runspec import TESTS_OF

from .check import Printing, say_unwritten_page
from .declare import Given
from .streams import ProgressLine
from .target import resolve_options, say_notes, unknown_name


def command(typed: Given, config: str | None, dry_run: bool, quiet: bool, json_: bool) -> int:
    """Run a suite."""
    resolved = resolve_options({**typed, "name": "test"}, config)
    suite = resolved.spec.tests.suite
    tests = TESTS_OF["sync" if suite == "staged" else suite]
    for name in resolved.spec.preflight.only:
        if name not in tests:
            raise UsageError(unknown_name("--only", name, f"test of the suite {suite}", tests))
    cluster = find_cluster(resolved.spec)
    spec = resolved.spec.changed(test="full", command=(), launcher="direct", retries=0)
    say_notes(resolved)
    if dry_run:
        click.echo(describe(spec, cluster, json_))
        return exitcodes.DONE
    with reached(spec, cluster) as transport:
        return run_suite(spec, cluster, Printing(json_, quiet), transport)


def run_suite(spec: RunSpec, cluster: Cluster, printing: Printing, transport: Transport) -> int:
    """Run the suite that was asked for. Return its exit code."""
    if spec.tests.suite == "staged":
        return run_staged(spec, cluster, printing, transport)
    if spec.tests.suite == "pairs":
        if len(cluster.nodes) < 2:
            raise UsageError("--suite pairs measures links between nodes: name two or more")
        return run_pairs(spec, cluster, printing, transport)
    return run_together(spec, cluster, printing, transport)


LOOK = "ports"  # the check that tries every pair by TCP


def run_pairs(spec: RunSpec, cluster: Cluster, printing: Printing, transport: Transport) -> int:
    """Find dead links, choose a master that the other nodes reach, and measure their links. Return the exit code."""
    if spec.target.local:
        return run_together(spec, cluster, printing, transport)
    run = RunDirectory.create(Path(spec.places.runs_dir), "check", time.time())
    progress = ProgressLine(printing.as_json or printing.quiet)
    evidence = look_at_nodes(spec, cluster, run, [all_checks()[LOOK]], progress.show, transport)
    progress.end()
    findings = [f for f in judge_evidence(evidence, [all_checks()[LOOK]], spec.preflight.allow) if f.status == "fail"]
    if not printing.as_json:
        for finding in findings:
            sys.stdout.write(finding_line(finding) + "\n")
    dead = dead_pairs(evidence.nodes)
    own_names = {host: name for name, host in evidence.hosts.items()}  # of nodes that the list knows by address
    nodes = [dataclasses.replace(node, name=own_names.get(node.host, node.name)) for node in cluster.nodes]
    rest = without(Cluster(tuple(nodes), cluster.source), set(evidence.nodes), dead)
    if len(rest.nodes) < 2:
        nothing = SuiteResult(suite="pairs", exit=exitcodes.NODE_FAILED, findings=tuple(findings))
        words = "no two nodes reach one another: nothing was measured"
        print(document_line(nothing) if printing.as_json else words)
        return nothing.exit
    names = {n.name for n in rest.nodes}
    dead_ones = tuple(sorted(p for p in dead if names >= set(p)))
    return run_together(spec, rest, printing, transport, findings, dead_ones)


def dead_pairs(facts: Mapping[str, Mapping[str, Any]]) -> set[Pair]:
    """Pairs of which one way carries no TCP."""
    pairs = tried({node: Facts(document) for node, document in facts.items()})
    return {(a, b) if a < b else (b, a) for (a, b), result in pairs.items() if not result.way.ok}


def without(cluster: Cluster, reached: set[str], dead: set[Pair]) -> Cluster:
    """Choose the nodes that a gang can hold: as master the one with the fewest dead links, then all that reach it."""
    nodes = [n for n in cluster.nodes if n.name in reached]
    if not nodes:
        return Cluster((), cluster.source)
    master = min(nodes, key=lambda n: (sum(n.name in pair for pair in dead), n.index))
    cut = {name for pair in dead if master.name in pair for name in pair} - {master.name}
    chosen = [master, *(n for n in nodes if n is not master and n.name not in cut)]
    return Cluster(tuple(dataclasses.replace(n, index=i) for i, n in enumerate(chosen)), cluster.source)


STOPPED = (exitcodes.CTRL_C, exitcodes.TERMINATED)


def run_staged(spec: RunSpec, cluster: Cluster, printing: Printing, transport: Transport) -> int:
    """Return the exit code: that of the first group that failed."""
    run = RunDirectory.create(Path(spec.places.runs_dir), "test", time.time())
    staged = Staged(spec, cluster, run, printing, transport)
    code = exitcodes.DONE
    meaning = ALL_PASSED
    for stage in stages([n.name for n in cluster.nodes]):
        failed = staged.stage(stage)
        if failed:
            code = failed[0][1]
            meaning = "ended by hand" if code in STOPPED else stage.meaning([group for group, _ in failed])
            break
    return staged.close(code, meaning)


class Staged:
    """The stages of one test, with the results of their groups."""

    def __init__(
        self, spec: RunSpec, cluster: Cluster, run: RunDirectory, printing: Printing, transport: Transport
    ) -> None:
        self._transport = transport
        self._spec = spec
        self._cluster = cluster
        self._run = run
        self._printing = printing
        self._stages: list[StageResult] = []
        self._findings: list[Finding] = []
        self._started = time.time()
        self._began = time.monotonic()
        self._say(f"test      {run.name}\nnodes     {', '.join(n.name for n in cluster.nodes)}")

    def _say(self, text: str, is_failure: bool = False) -> None:
        if not self._printing.as_json and (is_failure or not self._printing.quiet):
            print(text, flush=True)

    def stage(self, stage: SuiteStage) -> list[tuple[Group, int]]:
        """Run a stage; return the groups that failed with their exit codes."""
        self._say(f"stage     {stage.name}: {len(stage.groups())} groups of {stage.size}")
        groups: list[GroupResult] = []
        failed: list[tuple[Group, int]] = []
        for disjoint in stage.rounds:
            for group, result in self._round(disjoint):
                seconds = result.timing.total or 0.0
                groups.append(GroupResult(tuple(group), result.exit == 0, seconds, result.directory))
                if result.exit:
                    failed.append((group, result.exit))
                self._tell(group, result)
            if failed and failed[-1][1] in STOPPED:
                break
        meaning = stage.meaning([group for group, _ in failed]) if failed else ""
        self._stages.append(StageResult(stage.name, tuple(groups), meaning))
        return failed

    def _tell(self, group: Group, result: ResultDocument) -> None:
        line = f"{group_name(group)}   {result.timing.total or 0.0:.1f} s"
        if result.verdict is not None:
            self._findings.append(result.verdict.finding)
            line += f"   {result.verdict.finding.message}"
        self._say(f"{'FAIL' if result.exit else 'PASS'}      {line}", bool(result.exit))

    def _round(self, groups: Sequence[Group]) -> list[tuple[Group, ResultDocument]]:
        """Disjoint groups side by side, each a gang of its own with its own directory below this run's."""
        made = [self._session(group) for group in groups]
        return list(zip(groups, run_loop(lambda: run_round(made)), strict=True))

    def _session(self, group: Group) -> sessions.Session:
        nodes = [n for n in self._cluster.nodes if n.name in group]
        part = Cluster(tuple(dataclasses.replace(n, index=i) for i, n in enumerate(nodes)), self._cluster.source)
        name = f"test-{len(nodes)}-{nodes[0].name}"[:40]
        stages_dir = str(self._run.path / "stages")
        spec = of_a_stage(self._spec).changed(runs_dir=stages_dir, name=name, nodes=None)
        view = OutputView() if self._printing.as_json else View()
        return sessions.create(spec, part, NodeReach(self._transport), os.environ, os.getcwd(), lambda: view)

    def close(self, code: int, meaning: str) -> int:
        """Say what it means, and save it."""
        result = SuiteResult(
            self._run.name,
            str(self._run.path),
            code,
            suite="staged",
            ok=code == exitcodes.DONE,
            nodes=tuple(n.name for n in self._cluster.nodes),
            findings=tuple(self._findings),
            stages=tuple(self._stages),
            meaning=meaning,
            statement=(meaning,),
            started=self._started,
        )
        save_suite(self._run, result, self._printing.as_json)
        word = end_word(code, "passed")
        seconds = time.monotonic() - self._began
        closing = f"\n{meaning}\n{word} after {seconds:.1f} s (exit {code}). The report is in {self._run.path}"
        self._say(closing, code != exitcodes.DONE)
        return code


SYNC_PASSED = (
    "every collective that was tested gives right results on all ranks: the cluster carries collectives. Look at the "
    "training code"
)

ONE_PASSED = (
    "every collective that was tested gives right results on this node. Test it together with others: "
    "allranks test --hosts hosts.txt"
)


def run_together(
    spec: RunSpec,
    cluster: Cluster,
    printing: Printing,
    transport: Transport,
    before: Sequence[Finding] = (),
    dead: tuple[tuple[str, str], ...] = (),
) -> int:
    """One gang of all nodes; gives the exit code. `before` has findings that are known already."""
    view: View = TestView()
    if printing.as_json:
        view = OutputView()
    elif printing.quiet:
        view = FailureView()
    session = sessions.create(spec, cluster, NodeReach(transport), os.environ, os.getcwd(), lambda: view, dead=dead)
    session.view.opening(opening(session))
    result = session.run(None)
    result = replace(result, findings=(*before, *result.findings))
    if before and result.exit == exitcodes.DONE:
        result = replace(result, exit=exitcodes.CHECK_FAILED, verdict=verdict_of(before[0]))
    close(spec, session, result, printing.as_json)
    return result.exit


def close(spec: RunSpec, session: sessions.Session, result: ResultDocument, json_: bool) -> None:
    """Print and save the end."""
    roster = session.controller.gang.roster
    tested = replace(
        suite_result(result),
        suite=spec.tests.suite,
        ok=result.exit == exitcodes.DONE,
        nodes=tuple(node.name for node in roster.cluster.nodes),
        ranks=len(roster.ranks()),
        started=session.started,
    )
    if spec.tests.suite == "sync" and tested.ok:
        tested = replace(tested, meaning=SYNC_PASSED if len(tested.nodes) > 1 else ONE_PASSED)
    save_suite(session.run_dir, tested, json_)
    session.view.closing(tested)


def save_suite(run: RunDirectory, tested: SuiteResult, json_: bool) -> None:
    """Write the result of a test and its page; print the document where `json_`."""
    replace_result(run, tested)
    if can_write_pages():
        from allranks.report.testpage import test_page  # imported late: Jinja2 is wanted for the page alone

        say_unwritten_page(run, run.write_page(test_page(tested)))
    if json_:
        print(document_line(tested))
