"""`allranks test --suite pairs`: dead links first, by plain TCP; the others are measured by a gang of all nodes."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allranks import exitcodes
from allranks.cluster import Cluster
from allranks.findings import Finding
from allranks.gang import checking
from allranks.gang.plugins import all_checks
from allranks.gang.transport import Transport
from allranks.preflight.peer_pairs import Pair, tried
from allranks.preflight.typed_facts import Facts
from allranks.report.sentences import finding_line
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import SuiteSummary
from allranks.settings import RunSpec

from .check import Printing, ProgressLine
from .together import print_document, run_together

LOOK = "ports"  # the check that tries every pair by TCP


def run_pairs(spec: RunSpec, cluster: Cluster, printing: Printing, transport: Transport) -> int:
    """Find dead links, choose a master that the other nodes reach, and measure their links. Return the exit code."""
    if spec.target.local or len(cluster.nodes) < 2:
        return run_together(spec, cluster, printing, transport)
    run = RunDirectory.create(Path(spec.places.runs_dir), "check", time.time())
    progress = ProgressLine(printing.as_json or printing.quiet)
    evidence = checking.look(spec, cluster, run, [all_checks()[LOOK]], progress.show, transport)
    progress.end()
    findings = [
        f for f in checking.judge_evidence(evidence, [all_checks()[LOOK]], spec.preflight.allow) if f.status == "fail"
    ]
    if not printing.as_json:
        for finding in findings:
            sys.stdout.write(finding_line(finding) + "\n")
    dead = dead_pairs(evidence["nodes"])
    rest = without(named(cluster, evidence["hosts"]), set(evidence["nodes"]), dead)
    if len(rest.nodes) < 2:
        return _nothing_left(findings, printing.as_json)
    names = {n.name for n in rest.nodes}
    dead_ones = tuple(sorted(p for p in dead if names >= set(p)))
    return run_together(spec, rest, printing, transport, findings, dead_ones)


def dead_pairs(facts: Mapping[str, Mapping[str, Any]]) -> set[Pair]:
    """Pairs of which one way carries no TCP."""
    pairs = tried({node: Facts(document) for node, document in facts.items()})
    return {(a, b) if a < b else (b, a) for (a, b), result in pairs.items() if not result.ok}


def named(cluster: Cluster, hosts: Mapping[str, str]) -> Cluster:
    """Nodes that the list knows by address, by the names that they gave themselves."""
    names = {host: name for name, host in hosts.items()}
    chosen = (dataclasses.replace(n, name=names.get(n.host, n.name)) for n in cluster.nodes)
    return Cluster(tuple(chosen), cluster.source)


def without(cluster: Cluster, reached: set[str], dead: set[Pair]) -> Cluster:
    """Choose the nodes that a gang can hold: as master the one with the fewest dead links, then all that reach it."""
    nodes = [n for n in cluster.nodes if n.name in reached]
    if not nodes:
        return Cluster((), cluster.source)
    master = min(nodes, key=lambda n: (sum(n.name in pair for pair in dead), n.index))
    cut = {name for pair in dead if master.name in pair for name in pair} - {master.name}
    chosen = [master, *(n for n in nodes if n is not master and n.name not in cut)]
    return Cluster(tuple(dataclasses.replace(n, index=i) for i, n in enumerate(chosen)), cluster.source)


def _nothing_left(findings: list[Finding], json_: bool) -> int:
    """No two nodes reach one another."""
    code = exitcodes.NODE_FAILED
    if json_:
        print_document(SuiteSummary(suite="pairs", exit=code, findings=tuple(findings)))
    else:
        sys.stdout.write("no two nodes reach one another: nothing was measured\n")
    return code
