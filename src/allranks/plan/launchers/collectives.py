"""collectives: allranks' own tests in every rank, with torchrun's environment; they lie beside the runner."""

from __future__ import annotations

from allranks.protocol.orders import SuiteNodes
from allranks.settings import RunSpec

from ..environment import NodeLaunch, PlannedProcess

ARCHIVE = "fabric.zip"  # agent/boot.py writes it there
STAGED_SIZE = 16 << 20  # bytes: a stage is to tell whether it works at all


def of_a_stage(spec: RunSpec) -> RunSpec:
    """Turn the settings of --suite staged into those that each group of nodes runs."""
    return spec.changed(suite="sync", size=min(spec.tests.size, STAGED_SIZE))


def arguments(spec: RunSpec, tested: SuiteNodes) -> tuple[str, ...]:
    """Make the words after `python -m allranks.fabric` for a rank: all from the spec but the names of nodes.

    A quick test before a run leaves no rows: the file is the training program's.
    """
    quick = spec.tests.test == "quick"
    words = [
        "--suite",
        "sync" if quick else spec.tests.suite,
        "--backend",
        spec.tests.backend,
        "--size",
        str(spec.tests.size),
        "--timeout",
        f"{spec.tests.timeout:g}s",
        "--nodes",
        ",".join(tested.nodes),
    ]
    left_out = ",".join("/".join(pair) for pair in tested.dead)
    if left_out:
        words += ["--dead", left_out]
    if spec.preflight.only and not quick:
        words += ["--only", ",".join(spec.preflight.only)]
    if spec.tests.min_bandwidth:
        words += ["--min-bandwidth", str(spec.tests.min_bandwidth)]
    if spec.tests.max_latency:
        words += ["--max-latency", f"{spec.tests.max_latency * 1000:g}ms"]
    if quick:
        words += ["--quick", "--out", "none"]
    return tuple(words)


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
