"""collectives: allranks' own tests in every rank, with torchrun's environment; they lie beside the runner."""

from __future__ import annotations

from allranks.protocol.orders import SuiteNodes
from allranks.settings import RunSpec

from ..environment import NodeLaunch, PlannedProcess
from .node_launcher import options_of

ARCHIVE = "fabric.zip"  # agent/boot.py writes it there
STAGED_SIZE = 16 << 20  # bytes: a stage is to tell whether it works at all


def of_a_stage(spec: RunSpec) -> RunSpec:
    """Turn the settings of --suite staged into those that each group of nodes runs."""
    return spec.changed(suite="sync", size=min(spec.tests.size, STAGED_SIZE))


def arguments(spec: RunSpec, tested: SuiteNodes) -> tuple[str, ...]:
    """Make the words after `python -m allranks.fabric` for a rank: all from the spec but the names of nodes.

    A quick test before a run leaves no rows: the file is the training program's.
    """
    tests = spec.tests
    quick = tests.test == "quick"
    options: dict[str, object] = {
        "suite": "sync" if quick else tests.suite,
        "backend": tests.backend,
        "size": tests.size,
        "timeout": f"{tests.timeout:g}s",
        "nodes": ",".join(tested.nodes),
        "dead": ",".join("/".join(pair) for pair in tested.dead),
        "only": "" if quick else ",".join(spec.preflight.only),
        "min-bandwidth": tests.min_bandwidth,
        "max-latency": f"{tests.max_latency * 1000:g}ms" if tests.max_latency else "",
        "out": "none" if quick else "",
    }
    given = options_of({name: value for name, value in options.items() if value})
    return (*given, "--quick") if quick else given


def collectives(launch: NodeLaunch) -> list[PlannedProcess]:
    """One process a rank, under the interpreter that the program would have."""
    tests = launch.attempt.tests
    argv = (
        launch.facts.interpreter.path or launch.spec.launch.python or "python3",
        f"{launch.place.node_dir}/runner.py",
        f"{launch.place.node_dir}/{ARCHIVE}",
        *(arguments(launch.spec, tests) if tests is not None else ()),
    )
    return [PlannedProcess(launch.node.first_rank + i, i, argv) for i in range(launch.node.nproc)]
