"""Steps in what ranks print: real lines of frameworks, lines that are none, and pieces cut anywhere.

`step_logs/` has what transformers 5.23 and lightning 2.6 printed here, and lines as the sources that gang/steps.py
names print them.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.gang.progress import Progress
from allranks.gang.steps import LOOKED_AT, StepFinder, StepSeen
from allranks.protocol.frames import COPIED, METRICS, RANK_LOG, Stream
from allranks.protocol.run_facts import StepsResumed
from allranks.runs.documents import RankStatus

LOGS = Path(__file__).parent / "step_logs"
# name, format, last step, steps in all as far as the lines say, epoch
EXPECTED = [
    ("transformers", "tqdm", 60, 60, 3.0),
    ("lightning", "tqdm", 60, None, 2.0),
    ("lightning_without_logger", "tqdm", 60, None, 2.0),
    ("megatron", "words", 3, 100, None),
    ("torchtitan", "words", 20, None, None),
    ("deepspeed", "words", 20, None, 0.0),
    ("deepspeed_pipeline", "words", 20, None, None),
    ("torchvision", "torchvision", 30, None, 1.0),
    ("imagenet", "torchvision", 211, None, 2.0),
    ("mmengine", "mmengine", 296, None, 2.0),
    ("nanogpt", "words", 30, None, None),
    ("nemo", "words", 2, None, 0.0),
    ("json_lines", "words", 30, None, 0.03),
    ("own_loop", "words", 60, 150, 2.0),
    ("fraction", "fraction", 20, 500, None),
    ("bar_of_epochs", "tqdm", 120, None, None),
]


def look(finder: StepFinder, data: bytes, size: int, begins: float = 0.0) -> list[StepSeen]:
    """Feed a log in pieces of `size` bytes, a second apart."""
    seen = []
    for number, start in enumerate(range(0, len(data), size)):
        seen += finder.feed(data[start : start + size], begins + number, begins + number)
    return seen


@pytest.mark.parametrize(("name", "source", "step", "total", "epoch"), EXPECTED, ids=[row[0] for row in EXPECTED])
def test_frameworks(name: str, source: str, step: int, total: int | None, epoch: float | None) -> None:
    finder = StepFinder()
    seen = look(finder, (LOGS / f"{name}.log").read_bytes(), 64)
    assert finder.source is not None
    assert (finder.source.format.name, seen[-1].step, seen[-1].total) == (source, step, total)
    assert finder.epoch == epoch
    steps = [one.step for one in seen if not one.is_first]
    assert steps == sorted(steps)


def test_a_log_that_comes_in_one_piece() -> None:
    """Lightning's own line is in it, and says more than the bar alone."""
    finder = StepFinder()
    seen = look(finder, (LOGS / "lightning.log").read_bytes(), 1 << 20)
    assert finder.source is not None
    assert (finder.source.format.name, seen[-1].step) == ("Lightning", 60)


@pytest.mark.parametrize("name", ["no_steps", "transformers_without_bars"])
@pytest.mark.parametrize("size", [1, 64, 1000, 1 << 20])
def test_what_counts_no_steps(name: str, size: int) -> None:
    finder = StepFinder()
    assert look(finder, (LOGS / f"{name}.log").read_bytes(), size) == []
    assert finder.source is None
    assert finder.epoch is not None  # an epoch is said where one is printed


def test_no_step_in_the_logs_of_failures() -> None:
    """Of all cases of log diagnosis, line by line, two have a loop that prints steps. The second begins at 1 again."""
    recognised = {}
    for path in sorted((Path(__file__).parents[1] / "diagnose" / "cases").glob("*.txt")):
        finder = StepFinder()
        lines = path.read_bytes().splitlines(keepends=True)
        seen = [one.step for number, line in enumerate(lines) for one in finder.feed(line, number, number)]
        if seen:
            recognised[path.name] = seen
    assert recognised == {"program.txt": [100, 101, 102]}


@given(
    st.sampled_from(["megatron", "torchtitan", "own_loop", "torchvision"]), st.lists(st.integers(1, 400), min_size=1)
)
def test_pieces_cut_anywhere_come_to_the_same_step(name: str, sizes: list[int]) -> None:
    data = (LOGS / f"{name}.log").read_bytes()
    whole = look(StepFinder(), data, 64)[-1]
    finder = StepFinder()
    seen = []
    start = number = 0
    while start < len(data):
        size = sizes[number % len(sizes)]
        seen += finder.feed(data[start : start + size], number, number)
        start += size
        number += 1
    assert (seen[-1].step, seen[-1].total) == (whole.step, whole.total)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_anything_else_gives_a_step_that_can_be_one(data: bytes, size: int) -> None:
    finder = StepFinder()
    assert all(0 <= one.step < 1 << 53 for one in look(finder, data, size))
    assert len(finder.feed(b"\nstep 1 loss 2\nstep 2 loss 2\nstep 3 loss 2\n", 1e6, 1e6)) > 0


def test_a_source_with_more_to_say_takes_the_place_of_another() -> None:
    """A bar without a name may have prepared data; the steps before do not count."""
    bar = b"".join(b" %2d%%|##   | %d/10 [00:01<00:02,  4.10it/s]\r" % (n * 10, n) for n in range(11))
    loop = b"".join(b"step %d loss 2.%d\n" % (n, n) for n in range(1, 5))
    finder = StepFinder()
    assert look(finder, bar + b"\n", 50)[-1].step == 10
    seen = look(finder, loop, 17, begins=1000.0)
    assert (seen[0].step, seen[0].is_first, seen[-1].step) == (1, True, 4)


def test_the_bar_of_an_evaluation_is_another() -> None:
    training = b"".join(b" %2d%%|##   | %d/100 [00:01<00:02,  4.10it/s]\r" % (n, n) for n in range(10, 21))
    evaluation = b"".join(b" %2d%%|##   | %d/10 [00:01<00:02,  4.10it/s]\r" % (n * 10, n) for n in range(11))
    finder = StepFinder()
    assert [one.step for one in look(finder, training + evaluation, 40)][-1] == 20


def test_of_a_burst_the_end_is_looked_at() -> None:
    """A piece of any length costs the same."""
    noise = b"x" * 70 + b"\n"
    steps = b"step 1 loss 2\nstep 2 loss 2\nstep 3 loss 2\n"
    finder = StepFinder()
    assert finder.feed(steps + noise * (LOOKED_AT // 70), 0.0, 0.0) == []
    assert [one.step for one in finder.feed(noise * (LOOKED_AT // 70) + steps, 10.0, 10.0)] == [1, 2, 3]


# -- in a run ------------------------------------------------------------------------------------------------


@pytest.fixture
def progress() -> Progress:
    return Progress(None, None, lambda why, option: None, lambda source, why: None)


def output(progress: Progress, *lines: str, rank: int = 0, at: float = 1.0) -> None:
    for number, line in enumerate(lines):
        progress.output(Stream(RANK_LOG, rank, 0), line.encode(), at + number, 1000.0 + at + number)


def test_a_rank_shows_its_step_rate_and_total(progress: Progress) -> None:
    output(progress, *(f"step {n}/50 loss 2.1\n" for n in (10, 12, 14)))
    assert progress.by_rank() == {0: RankStatus(0, step=14, rate=2.0, last_output=1003.0, total_steps=50)}
    assert progress.first_step_at == 1.0


def test_the_end_of_a_file_that_comes_when_a_rank_has_ended_shows_no_step(progress: Progress) -> None:
    shown = [f"step {n}/50 loss 2.1\n" for n in (10, 12, 14)]
    output(progress, f"{COPIED.decode()}/w/train.log, to which its command writes\n{shown[0]}", *shown[1:])
    assert progress.first_step_at is None and progress.slowest_step() is None
    progress.begin_attempt()
    output(progress, *shown, at=5.0)
    assert progress.slowest_step() == 14


def test_steps_that_come_all_at_once_after_a_pause_are_no_rate(progress: Progress) -> None:
    """A controller that had been stopped for 76 s showed 31,995 steps a second."""
    output(progress, *(f"step {n}/500 loss 2.1\n" for n in (10, 12, 14)))
    for number in range(15, 90):  # before the pause is noticed, and after it
        if number == 30:
            progress.paused(76.0, 1080.02)
        output(progress, f"step {number}/500 loss 2.1\n", at=80.0 + number / 1000)
    assert progress.by_rank()[0] == RankStatus(0, step=89, rate=2.0, last_output=1080.089, total_steps=500)
    output(progress, *(f"step {n}/500 loss 2.1\n" for n in (260, 262)), at=85.0)
    rate = progress.by_rank()[0].rate
    assert rate is not None and 1.9 < rate < 3.1


def test_metrics_are_believed_instead(progress: Progress) -> None:
    output(progress, *(f"step {n} loss 2.1\n" for n in (10, 20)))
    output(progress, *(f"step {n} loss 2.1\n" for n in (10, 20)), rank=1)
    progress.output(Stream(METRICS, 0, 0), b'{"step": 3}\n', 5.0, 1005.0)
    output(progress, "step 30 loss 2\n", rank=1, at=6.0)
    assert {rank: one.step for rank, one in progress.by_rank().items()} == {0: 3, 1: None}


def test_a_pattern_is_believed_instead() -> None:
    progress = Progress(r"nothing (\d+)", "hang", lambda why, option: None, lambda source, why: None)
    output(progress, *(f"step {n} loss 2.1\n" for n in (10, 20)))
    assert progress.by_rank()[0].step is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param("step {} loss 2\n", StepsResumed(11, 30, 20, False), id="steps of the run"),
        pytest.param("Epoch: [0]  [{}/40] loss: 2\n", StepsResumed(11, 30, 20, False), id="epoch and step"),
    ],
)
def test_where_a_further_attempt_goes_on(progress: Progress, lines: str, expected: StepsResumed) -> None:
    output(progress, *(lines.format(n) for n in (1, 20, 30)))
    progress.begin_attempt()
    output(progress, lines.format(11))
    assert progress.resumed() == expected


def test_a_bar_that_begins_again_with_each_epoch_tells_no_lost_steps(progress: Progress) -> None:
    bar = "loss 2:  10%|#   | {}/30 [00:01<00:02,  4.10it/s]\r"
    output(progress, *(bar.format(n) for n in (1, 15, 30, 1, 15, 30, 1, 2)), "\n")
    assert progress.by_rank()[0].step == 62
    progress.begin_attempt()
    output(progress, *(bar.format(n) for n in (1, 2, 3)))
    assert progress.by_rank()[0].step == 3
    assert progress.resumed() is None


def test_a_bar_that_names_its_epoch_tells_them(progress: Progress) -> None:
    bar = "Epoch {}:  10%|#   | {}/30 [00:01<00:02,  4.10it/s, v_num=0]\r"
    output(progress, *(bar.format(*n) for n in ((0, 1), (0, 30), (1, 1), (1, 25))), "\n")
    progress.begin_attempt()
    output(progress, bar.format(1, 1), "\n")
    assert progress.resumed() == StepsResumed(31, 55, 25, False)


def test_collectives_a_second_where_no_step_is_known(progress: Progress) -> None:
    assert progress.wants_counts(100.0)
    assert not progress.wants_counts(101.0)
    progress.counted({0: {"0": 10, "gloo/0": {"last_enqueued_collective": "10"}}, 1: {}}, 100.0)
    assert progress.wants_counts(102.5)
    progress.counted({0: {"0": 20, "1": 5}, 1: {}}, 102.5)
    assert progress.by_rank() == {0: RankStatus(0, collectives=6.0)}
    assert not progress.wants_counts(110.0)
    output(progress, *(f"step {n} loss 2.1\n" for n in (10, 20)), rank=1)
    assert progress.by_rank()[1].step == 20
    assert 0 not in progress.by_rank()
    assert not progress.wants_counts(1000.0)
