"""allranks test: collective tests on the target's nodes, and which node or link is to blame."""

from __future__ import annotations

import click

from allranks import exitcodes
from allranks.cluster import Cluster
from allranks.engines.dry_run import describe
from allranks.engines.reachable_nodes import find_cluster, reached
from allranks.errors import UsageError
from allranks.gang.transport import Transport
from allranks.settings import RunSpec
from allranks.settings.runspec import TESTS_OF

from .check import Printing
from .declare import Given
from .pairs import run_pairs
from .staged import run_staged
from .target import resolve_options, say_notes, unknown_name
from .together import run_together


def command(typed: Given, config: str | None, dry_run: bool, quiet: bool, json_: bool) -> int:
    """Run a suite."""
    resolved = resolve_options({**typed, "name": "test"}, config)
    refuse_unknown_tests(resolved.spec)
    cluster = find_cluster(resolved.spec)
    spec = resolved.spec.changed(test="full", command=(), launcher="direct", retries=0)
    say_notes(resolved)
    if dry_run:
        click.echo(describe(spec, cluster, json_))
        return exitcodes.DONE
    with reached(spec, cluster) as transport:
        return run_suite(spec, cluster, Printing(json_, quiet), transport)


def tests_of(suite: str) -> tuple[str, ...]:
    """The names that --only may choose from."""
    return TESTS_OF["sync" if suite == "staged" else suite]


def refuse_unknown_tests(spec: RunSpec) -> None:
    """UsageError where --only names no test of the suite."""
    tests = tests_of(spec.tests.suite)
    for name in spec.preflight.only:
        if name not in tests:
            raise UsageError(unknown_name("--only", name, f"test of the suite {spec.tests.suite}", tests))


def run_suite(spec: RunSpec, cluster: Cluster, printing: Printing, transport: Transport) -> int:
    """Run the suite that was asked for. Return its exit code."""
    if spec.tests.suite == "staged":
        return run_staged(spec, cluster, printing, transport)
    if spec.tests.suite == "pairs":
        if len(cluster.nodes) < 2:
            raise UsageError("--suite pairs measures links between nodes: name two or more")
        return run_pairs(spec, cluster, printing, transport)
    return run_together(spec, cluster, printing, transport)
