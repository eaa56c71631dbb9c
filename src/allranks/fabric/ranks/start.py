"""From options to a suite: joins the job and starts the watchdog."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from allranks.exitcodes import CHECK_FAILED, HANG

from . import bandwidth
from . import pairs_suite as pairs
from .cases import QUICK, TESTS
from .job import STORE_ERRORS, SuiteJob
from .options import Options
from .printing import describe_error
from .sequence import Runner

T = TypeVar("T")


def start(options: Options) -> int:
    """Run a suite and give the exit code; raise ValueError for wrong usage."""
    run = _suite(options)
    try:
        job = SuiteJob(os.environ, options.timeout)
    except STORE_ERRORS as problem:
        rank = os.environ["RANK"]
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        opens = "can't open" if rank == "0" else "does not reach"
        text = f"rank {rank} {opens} the store at {address} within {options.timeout:g} s: {describe_error(problem)}"
        print(f"FAIL start: {text}", file=sys.stderr, flush=True)
        return HANG
    if options.suite == "pairs":
        return pairs.run(job, options)
    runner = Runner(job, options)
    try:
        run(runner)
        code = runner.finish()
        job.leave()
    except Exception as problem:
        # Outside a test's body it is the store that fails: with rank 0, which holds it.
        if runner.watch.watching and isinstance(problem, STORE_ERRORS):
            runner.watch.store_lost(problem)
        print(f"allranks.fabric: {describe_error(problem)}", file=sys.stderr, flush=True)
        return CHECK_FAILED
    return code


def _suite(options: Options) -> Callable[[Runner], None]:
    if options.suite == "bandwidth":
        names = _chosen(options, bandwidth.COLLECTIVES, bandwidth.QUICK, "collective")
        return partial(bandwidth.run, collectives=names)
    tests = {}
    if options.suite == "sync":
        tests = {name: TESTS[name] for name in _chosen(options, list(TESTS), QUICK, "test")}
    return partial(Runner.run, tests=tests, every=list(TESTS))


def _chosen(options: Options, names: Sequence[str], quick: Sequence[str], noun: str) -> list[str]:
    unknown = [name for name in options.only if name not in names]
    if unknown:
        raise ValueError(f"--only: {noun} {', '.join(unknown)} not found, expected one of {', '.join(names)}")
    if options.only:
        return [name for name in names if name in options.only]
    return [name for name in names if name in quick or not options.quick]
