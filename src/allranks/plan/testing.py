"""The arguments of `python -m allranks.fabric` for a spec (pure)."""

from __future__ import annotations

import dataclasses

from allranks.settings import RunSpec

from .ranks import SuiteNodes

STAGED_SIZE = 16 << 20  # bytes: a stage is to tell whether it works at all


def of_a_stage(spec: RunSpec) -> RunSpec:
    """What each group of --suite staged runs."""
    return dataclasses.replace(spec, suite="sync", size=min(spec.size, STAGED_SIZE))


def arguments(spec: RunSpec, tested: SuiteNodes) -> tuple[str, ...]:
    """The words for a rank: all from the spec but the names of nodes.

    A quick test before a run leaves no rows: the file is the training program's.
    """
    quick = spec.test == "quick"
    words = [
        "--suite",
        "sync" if quick else spec.suite,
        "--backend",
        spec.backend,
        "--size",
        str(spec.size),
        "--timeout",
        f"{spec.timeout:g}s",
        "--nodes",
        ",".join(tested.nodes),
    ]
    left_out = ",".join("/".join(pair) for pair in tested.dead)
    words += ["--dead", left_out] if left_out else []
    words += ["--only", ",".join(spec.only)] if spec.only and not quick else []
    words += ["--min-bandwidth", str(spec.min_bandwidth)] if spec.min_bandwidth else []
    words += ["--max-latency", f"{spec.max_latency * 1000:g}ms"] if spec.max_latency else []
    return (*words, *(("--quick", "--out", "none") if quick else ()))
