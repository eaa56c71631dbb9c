"""`allranks test --suite staged`: each node alone, pairs, larger groups, all; stops at the first stage that fails."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from allranks import exitcodes
from allranks.cluster import Cluster
from allranks.fabric.analysis.schedule import ALL_PASSED, Group, SuiteStage, group_name, stages
from allranks.findings import Finding
from allranks.gang import session as sessions
from allranks.gang.session import run_round
from allranks.gang.tasks import run_loop
from allranks.gang.transport import NodeReach, Transport
from allranks.plan.launchers.collectives import of_a_stage
from allranks.protocol.codec import decode_each, encode
from allranks.report.live import JsonView
from allranks.report.testview import TestView
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import GroupResult, ResultDocument, StageResult, SuiteSummary
from allranks.settings import RunSpec

from .check import Printing
from .together import save_suite

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

    def _say(self, text: str) -> None:
        if not (self._printing.as_json or self._printing.quiet):
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def _say_failure(self, text: str) -> None:
        if not self._printing.as_json:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def stage(self, stage: SuiteStage) -> list[tuple[Group, int]]:
        """Run a stage; return the groups that failed with their exit codes."""
        self._say(f"stage     {stage.name}: {len(stage.groups())} groups of {stage.size}")
        groups: list[GroupResult] = []
        failed: list[tuple[Group, int]] = []
        for number in range(len(stage.rounds)):
            for group, result in self._round(stage.rounds[number]):
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
        verdict = result.verdict
        line = f"{group_name(group)}   {result.timing.total or 0.0:.1f} s"
        if result.exit == 0:
            self._say(f"PASS      {line}")
        else:
            self._say_failure(f"FAIL      {line}   {verdict.finding.message if verdict is not None else ''}")
        if verdict is not None:
            self._findings += decode_each(Finding, [encode(verdict)])

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
        view = JsonView() if self._printing.as_json else TestView(silent=True)
        return sessions.create(spec, part, NodeReach(self._transport), os.environ, os.getcwd(), lambda: view)

    def close(self, code: int, meaning: str) -> int:
        """Say what it means, and save it."""
        result = SuiteSummary(
            self._run.name,
            str(self._run.path),
            "staged",
            code == exitcodes.DONE,
            code,
            nodes=tuple(n.name for n in self._cluster.nodes),
            findings=tuple(self._findings),
            stages=tuple(self._stages),
            meaning=meaning,
            statement=(meaning,),
            started=self._started,
        )
        save_suite(self._run, result, self._printing.as_json)
        word = "passed" if code == exitcodes.DONE else "failed"
        seconds = time.monotonic() - self._began
        closing = f"\n{meaning}\n{word} after {seconds:.1f} s (exit {code}). The report is in {self._run.path}"
        if code == exitcodes.DONE:
            self._say(closing)
        else:
            self._say_failure(closing)
        return code
