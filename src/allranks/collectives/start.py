"""From options to a suite: joins the job, starts the watchdog."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

import torch.distributed as dist

from . import bandwidth, sync
from .double import NAME, double_of
from .job import Job
from .options import Options
from .report import Report, plain
from .runner import Runner
from .watch import HANG, Watchdog

USAGE, FAILED = 2, 3


def start(options: Options) -> int:
    """Exit code. ValueError for wrong usage."""
    if not dist.is_available():
        raise ValueError("this torch is built without torch.distributed")
    double = double_of(os.environ.get(NAME, ""), int(os.environ["RANK"]))
    suite = suite_of(options)
    job = join(options)
    if job is None:
        return HANG
    if options.suite == "pairs":
        from .pairs import run as run_pairs  # needs files beside this package, which the other suites do without

        return run_pairs(job, options)
    report = Report(job, options)
    watch = Watchdog(job, report.hang)
    watch.start()
    runner = Runner(job, options, watch, report, double)
    try:
        code = suite(runner)
        job.leave()
    except Exception as problem:
        return unexpected(problem, watch)
    return code


def suite_of(options: Options) -> Callable[[Runner], int]:
    """What a runner is given to; checks the names in --only first."""
    if options.suite == "bandwidth":
        return partial(bandwidth.run, collectives=bandwidth.chosen(options.only, options.quick))
    return partial(sync.run, tests=sync.chosen(() if options.suite == "pairs" else options.only, options.quick))


def join(options: Options) -> Job | None:
    """None where there is no store at MASTER_ADDR; said on stderr."""
    try:
        return Job(os.environ, options.timeout)
    except (RuntimeError, OSError) as problem:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        opens = "can't open" if os.environ["RANK"] == "0" else "does not reach"
        print(f"FAIL start: rank {os.environ['RANK']} {opens} the store at {address} within {options.timeout:g} s: "
              f"{plain(problem)}", file=sys.stderr, flush=True)  # fmt: skip
        return None


def unexpected(problem: Exception, watch: Watchdog) -> int:
    """Outside a test's body only the store fails: with rank 0, which holds it."""
    if watch.watching and isinstance(problem, (RuntimeError, OSError)):
        watch.store_lost(problem)
    print(f"allranks.collectives: {plain(problem)}", file=sys.stderr, flush=True)
    return FAILED
