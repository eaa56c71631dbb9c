"""The pure parts of `python -m bench preempt`: the plan of a seed, the judge, the table."""

import pytest
from bench.preempt import BY_NAME, KINDS, Round, Seen, Word, draw, judge, report_of

REQUEUED = Round(0, "requeued", nodes=2, nproc=1, delay=0.5, pause=0.01, saving=0.3, way=0, with_torch=False)
WORDS = tuple(
    word
    for rank in (0, 1)
    for word in (Word("first", rank, 0, 1, 90.0), Word("saved", rank, 0, 7, 101.0), Word("first", rank, 1, 8, 120.0))
)
RIGHT = Seen(WORDS, 100.0, 7, 2, 2, 0, "… and ranks had 6 s (KillWait)", (), 1, ())


def test_a_seed_is_50_rounds_of_which_15_are_requeued() -> None:
    rounds = draw(16, quick=False)
    assert len(rounds) == 50 and rounds == draw(16, quick=False) != draw(17, quick=False)
    assert sum(BY_NAME[round_.kind].is_requeue for round_ in rounds) >= 15
    assert {round_.kind for round_ in draw(16, quick=True)} == set(BY_NAME)


def test_a_round_as_it_must_be() -> None:
    assert judge(REQUEUED, RIGHT) == []


def saved_at(step: int, t: float = 101.0) -> tuple[Word, ...]:
    """Rank 1 saved another step, or at another time."""
    return tuple(word._replace(step=step, t=t) if word[:2] == ("saved", 1) else word for word in WORDS)


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (RIGHT._replace(words=saved_at(8)), "ranks saved steps 7 and 8"),
        (RIGHT._replace(words=saved_at(7, 106.5)), "ranks [1] saved after the 6 s were over"),
        (RIGHT._replace(words=WORDS[:3]), "rank 1 saved 0 times"),
        (RIGHT._replace(words=(*WORDS, WORDS[1])), "rank 0 saved 2 times"),
        (RIGHT._replace(words=tuple(w._replace(step=1) if w.attempt else w for w in WORDS)), "after the requeue"),
        (RIGHT._replace(restarts=0), "Slurm started the job 0 times again"),
        (RIGHT._replace(said_ranks=1), "the run says step 7 on 1 of 2 ranks"),
        (RIGHT._replace(message="Slurm put job 3 back into the queue"), "does not say that KillWait gave the time"),
        (RIGHT._replace(exit=1), "exit 1, not 0"),
        (RIGHT._replace(left=("h1: python3",)), "left: h1: python3"),
    ],
)
def test_each_breach_is_named(seen: Seen, says: str) -> None:
    assert any(says in fault for fault in judge(REQUEUED, seen)), judge(REQUEUED, seen)


def test_the_table_counts_requeues_and_what_was_right() -> None:
    lines = [
        {**REQUEUED._asdict(), "number": number, "right": int(number > 0), "restarts": 1, "to_save": 0.5, "load": 3.0}
        for number in range(16)
    ]
    report = report_of(lines, 16)
    rows = {row.label: (row.median, row.met) for row in report.rows}
    assert rows["went on at the saved step after a requeue"] == (15.0, True)
    assert rows["right of all"] == (15.0, False)
    assert len(report.samples) == len(KINDS)
