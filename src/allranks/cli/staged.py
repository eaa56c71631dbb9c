"""`allranks test --suite staged`: each node alone, pairs, larger groups, all; stops at the first stage that fails."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allranks import exitcodes
from allranks.cluster import Cluster
from allranks.fabric.analysis.schedule import ALL_PASSED, Group, SuiteStage, group_name, stages
from allranks.gang import session as sessions
from allranks.gang.session import run_round
from allranks.gang.tasks import run_loop
from allranks.gang.transport import NodeReach, Transport
from allranks.plan.launchers.collectives import of_a_stage
from allranks.report.live import JsonView
from allranks.report.testview import TestView
from allranks.runs.directory import RunDirectory
from allranks.runs.result import replace_result
from allranks.settings import RunSpec

Document = dict[str, Any]
STOPPED = (exitcodes.CTRL_C, exitcodes.TERMINATED)


def run_staged(spec: RunSpec, cluster: Cluster, json_: bool, transport: Transport) -> int:
    """Gives the exit code: that of the first group that failed."""
    run = RunDirectory.create(Path(spec.places.runs_dir), "test", time.time())
    staged = Staged(spec, cluster, run, json_, transport)
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
    """The stages of one test, what was found in each, and what is said of it."""

    def __init__(self, spec: RunSpec, cluster: Cluster, run: RunDirectory, json_: bool, transport: Transport) -> None:
        self._transport = transport
        self._spec = spec
        self._cluster = cluster
        self._run = run
        self._json = json_
        self._stages: list[Document] = []
        self._findings: list[Document] = []
        self._started, self._began = time.time(), time.monotonic()
        self._say(f"test      {run.name}\nnodes     {', '.join(n.name for n in cluster.nodes)}")

    def _say(self, text: str) -> None:
        if not self._json:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def stage(self, stage: SuiteStage) -> list[tuple[Group, int]]:
        """Runs a stage; gives the groups that failed with their exit codes."""
        self._say(f"stage     {stage.name}: {len(stage.groups())} groups of {stage.size}")
        groups: list[Document] = []
        failed: list[tuple[Group, int]] = []
        for number in range(len(stage.rounds)):
            for group, result in self._round(stage.rounds[number]):
                code = int(result["exit"])
                seconds = (result.get("timing") or {}).get("total", 0.0)
                groups.append({"nodes": list(group), "ok": code == 0, "seconds": seconds, "run": result["directory"]})
                failed += [(group, code)] if code else []
                self._tell(group, result)
            if failed and failed[-1][1] in STOPPED:
                break
        meaning = "" if not failed else stage.meaning([group for group, _ in failed])
        self._stages.append({"name": stage.name, "groups": groups, "meaning": meaning})
        return failed

    def _tell(self, group: Group, result: Document) -> None:
        code = int(result["exit"])
        verdict = result.get("verdict") or {}
        seconds = (result.get("timing") or {}).get("total", 0.0)
        why = f"   {verdict.get('message') or ''}" if code else ""
        self._say(f"{'FAIL' if code else 'PASS'}      {group_name(group)}   {seconds:.1f} s{why}")
        self._findings += [{k: v for k, v in verdict.items() if k in FINDING}] if verdict else []

    def _round(self, groups: Sequence[Group]) -> list[tuple[Group, Document]]:
        """Disjoint groups side by side, each a gang of its own with its own directory below this run's."""
        made = [self._session(group) for group in groups]
        return list(zip(groups, run_loop(lambda: run_round(made)), strict=True))

    def _session(self, group: Group) -> sessions.Session:
        nodes = [n for n in self._cluster.nodes if n.name in group]
        part = Cluster(tuple(dataclasses.replace(n, index=i) for i, n in enumerate(nodes)), self._cluster.source)
        name = f"test-{len(nodes)}-{nodes[0].name}"[:40]
        stages_dir = str(self._run.path / "stages")
        spec = of_a_stage(self._spec).changed(runs_dir=stages_dir, name=name, nodes=None)
        view = JsonView() if self._json else TestView(quiet=True)
        return sessions.create(spec, part, NodeReach(self._transport), os.environ, os.getcwd(), lambda: view)

    def close(self, code: int, meaning: str) -> int:
        """Says what it means, and saves it."""
        from allranks.report.testpage import test_page

        nodes = [n.name for n in self._cluster.nodes]
        result = {
            "run": self._run.name,
            "directory": str(self._run.path),
            "suite": "staged",
            "ok": code == 0,
            "exit": code,
            "nodes": nodes,
            "findings": self._findings,
            "stages": self._stages,
            "meaning": meaning,
            "collectives": [],
            "links": [],
            "statement": [meaning],
            "started": self._started,
        }
        replace_result(self._run, result)
        (self._run.path / "report.html").write_text(test_page(result), encoding="utf-8")
        if self._json:
            sys.stdout.write(json.dumps({"schema": 1, **result}) + "\n")
        word = "passed" if code == 0 else "failed"
        seconds = time.monotonic() - self._began
        self._say(f"\n{meaning}\n{word} after {seconds:.1f} s (exit {code}). The report is in {self._run.path}")
        return code


FINDING = ("id", "status", "where", "message", "remedy", "evidence", "check")
