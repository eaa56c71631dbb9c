"""The suite sync: does every collective give the right numbers, on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from .families import QUICK, TESTS
from .lab import Test
from .runner import Runner

NAMES = tuple(test.name for test in TESTS)


def chosen(only: Sequence[str], quick: bool) -> list[Test]:
    """The tests that are asked for, in their own order. ValueError for a name that there is not."""
    unknown = [name for name in only if name not in NAMES]
    if unknown:
        raise ValueError(f"--only: no test {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return [test for test in TESTS if (test.name in only if only else not quick or test.name in QUICK)]


def run(runner: Runner, tests: Sequence[Test]) -> int:
    """Exit code."""
    report = runner.report
    report.plan([test.name for test in tests], NAMES)
    intact = runner.run([report.setup.test()])
    report.note_refusal()
    return runner.finish(intact and runner.run(tests))
