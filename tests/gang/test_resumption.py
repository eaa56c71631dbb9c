"""Where a further attempt goes on, and what is said of it."""

import pytest

from allranks.gang.progress import OLDEST, Progress, StepSpan
from allranks.protocol.frames import METRICS, Stream
from allranks.protocol.run_facts import Stamped, StepsResumed, StepsSeen
from allranks.report.sentences import event_line


@pytest.fixture
def progress() -> Progress:
    return Progress(None, None, lambda why, option: None, lambda source, why: None)


def show(progress: Progress, *steps: int, rank: int = 0) -> None:
    for step in steps:
        progress.output(Stream(METRICS, rank, 0), b'{"step": %d, "t": %d}\n' % (step, 1000 + step), 1.0, 1.0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param([0, 1, 2, 7], [5], StepsResumed(5, 7, 3, False), id="from a checkpoint"),
        pytest.param([0, 1, 2, 7], [8], StepsResumed(8, 7, 0, False), id="nothing lost"),
        pytest.param([0, 10, 20], [30], StepsResumed(21, 20, 0, False), id="nothing lost, every tenth step is shown"),
        pytest.param([0, 1, 2, 7], [0], StepsResumed(0, 7, 8, True), id="from nothing"),
        pytest.param([1, 2, 7], [1], StepsResumed(1, 7, 7, True), id="from nothing, counted from 1"),
        pytest.param([1], [1], StepsResumed(1, 1, 1, False), id="it had come to the first step alone"),
        pytest.param([], [3], None, id="no step was seen before"),
        pytest.param([1, 2], [], None, id="no step is seen yet"),
    ],
)
def test_where_it_goes_on(
    progress: Progress, before: list[int], after: list[int], expected: StepsResumed | None
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
    assert progress.resumed() == StepsResumed(81, 100, 20, False)


def test_what_is_said() -> None:
    steps = ((5, 7, 3, False), (0, 7, 8, True), (0, 7, 8, False))
    lines = [event_line(Stamped("", 1.0, 2, StepsResumed(*one)), 1) for one in steps]
    assert lines == [
        "attempt 2 resumed after step 4, 3 steps lost",
        "warning: attempt 2 begins at step 0 although step 7 was reached. No checkpoint was loaded",
        "attempt 2 began again at step 0, 8 steps lost",
    ]


def span_of(reached: int | None, *steps: tuple[int, int, float]) -> StepSpan:
    """Steps as (rank, step, unix seconds)."""
    span = StepSpan(reached)
    for rank, step, t in steps:
        span.note(rank, step, t)
    return span


def test_an_attempt_is_where_its_furthest_rank_was_when_the_last_one_moved() -> None:
    span = span_of(None, (0, 1, 10.0), (1, 1, 10.5), (0, 2, 11.0), (1, 2, 12.0), (1, 2, 99.0))
    assert span.seen == StepsSeen(1, 10.0, 2, 12.0)


def test_a_counter_that_begins_anew_each_epoch_still_moves() -> None:
    assert span_of(None, (0, 1, 1.0), (0, 9, 2.0), (0, 0, 3.0), (0, 1, 4.0)).seen == StepsSeen(0 + 1, 1.0, 9, 4.0)


@pytest.mark.parametrize(
    ("steps", "redone_t"),
    [
        pytest.param([(81, 10.0), (99, 20.0)], None, id="not there yet"),
        pytest.param([(81, 10.0), (100, 20.0), (110, 30.0)], 20.0, id="just there"),
        pytest.param([(80, 10.0), (90, 20.0), (110, 30.0)], 25.0, id="between two steps that were shown"),
        pytest.param([(100, 10.0), (101, 11.0)], 10.0, id="the first is the last of those before"),
        pytest.param([(101, 10.0), (102, 11.0)], 10.0, id="nothing is computed twice"),
    ],
)
def test_when_an_attempt_is_where_those_before_were(steps: list[tuple[int, float]], redone_t: float | None) -> None:
    seen = span_of(100, *((0, step, t) for step, t in steps)).seen
    assert seen is not None and seen.redone_t == redone_t


def test_a_step_after_a_standstill_ends_it_once() -> None:
    span = span_of(None, (0, 1, 10.0))
    span.stands_still = True
    span.note(0, 1, 11.0)
    assert span.went_on_t is None
    span.note(0, 2, 12.0)
    span.note(0, 3, 13.0)
    assert (span.went_on_t, span.stands_still) == (12.0, False)


def test_another_controller_goes_on_with_the_steps_that_were_seen() -> None:
    span = StepSpan()
    span.resume(StepsSeen(5, 10.0, 8, 13.0, 20, None))
    span.note(0, 20, 25.0)
    assert span.seen == StepsSeen(5, 10.0, 20, 25.0, 20, 25.0)


@pytest.mark.parametrize(("made", "expected"), [(990.0, 985.0), (1200.0, 1000.0), (1000.0 - OLDEST, 1000.0)])
def test_the_program_says_when_a_step_was_made_unless_that_cannot_be(
    progress: Progress, made: float, expected: float
) -> None:
    """The node's clock is 5 s ahead; the line has come at 1000."""
    line = b'{"step": 3, "t": %d}\n' % made
    progress.output(Stream(METRICS, 0, 0), line, 1.0, 1000.0, ahead=5.0)
    assert progress.span.seen == StepsSeen(3, expected, 3, expected)
