"""The arguments of `python -m allranks.collectives` for a spec (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from allranks.spec import RunSpec

Pairs = Iterable[tuple[str, str]]


def arguments(spec: RunSpec, nodes: Iterable[str], dead: Pairs = ()) -> tuple[str, ...]:
    """`nodes` are names in the gang's order; `dead` pairs are left out of --suite pairs.

    A quick test before a run leaves no rows: the file is the training program's.
    """
    quick = spec.test == "quick"
    words = ["--suite", "sync" if quick else spec.suite, "--backend", spec.backend, "--size", str(spec.size),
             "--timeout", f"{spec.timeout:g}s", "--nodes", ",".join(nodes)]  # fmt: skip
    left_out = ",".join("/".join(pair) for pair in dead)
    words += ["--dead", left_out] if left_out else []
    words += ["--only", ",".join(spec.only)] if spec.only and not quick else []
    words += ["--min-bandwidth", str(spec.min_bandwidth)] if spec.min_bandwidth else []
    words += ["--max-latency", f"{spec.max_latency * 1000:g}ms"] if spec.max_latency else []
    return (*words, *(("--quick", "--out", "none") if quick else ()))
