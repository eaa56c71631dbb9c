"""Where a further attempt goes on, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from allranks.gang.members import Resumption
from allranks.gang.progress import Progress
from allranks.protocol.frames import METRICS, Stream
from allranks.report.sentences import event_line
from allranks.runs.events import StepsResumed


@pytest.fixture
def progress() -> Iterator[Progress]:
    made = Progress(None, None, lambda why, option: None, lambda source, why: None)
    yield made
    made.close()


def show(progress: Progress, *steps: int, rank: int = 0) -> None:
    for step in steps:
        progress.output(Stream(METRICS, rank, 0), b'{"step": %d, "t": %d}\n' % (step, 1000 + step), 1.0, 1.0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param([0, 1, 2, 7], [5], Resumption(5, 7, 3, False), id="from a checkpoint"),
        pytest.param([0, 1, 2, 7], [8], Resumption(8, 7, 0, False), id="nothing lost"),
        pytest.param([0, 1, 2, 7], [0], Resumption(0, 7, 8, True), id="from nothing"),
        pytest.param([1, 2, 7], [1], Resumption(1, 7, 7, True), id="from nothing, counted from 1"),
        pytest.param([1], [1], Resumption(1, 1, 1, False), id="it had come to the first step alone"),
        pytest.param([], [3], None, id="no step was seen before"),
        pytest.param([1, 2], [], None, id="no step is seen yet"),
    ],
)
def test_where_it_goes_on(
    progress: Progress, before: list[int], after: list[int], expected: Resumption | None
) -> None:
    show(progress, *before)
    assert progress.resumed() is None
    progress.begin_attempt()
    show(progress, *after)
    assert progress.resumed() == expected


def test_how_far_all_attempts_and_ranks_came_counts(progress: Progress) -> None:
    show(progress, 1, 90)
    show(progress, 1, 100, rank=1)
    progress.begin_attempt()
    show(progress, 81, 85)
    progress.begin_attempt()
    show(progress, 81)
    assert progress.resumed() == Resumption(81, 100, 20, False)


def test_what_is_said() -> None:
    lines = [event_line(StepsResumed(*one).line(1.0, 2), 1) for one in ((5, 7, 3, False), (0, 7, 8, True))]
    assert lines == [
        "attempt 2 goes on at step 5, 3 steps of those up to 7 are done again",
        "warning: attempt 2 begins at step 0 although step 7 was reached. No checkpoint was loaded",
    ]
