"""The pure parts of `make chaos`: the plan of a seed, the table of faults, the judge, the table of results."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.chaos.elsewhere import AWAY_STRIKES, JOIN_STRIKES, SLURM_STRIKES
from bench.chaos.faults import BY_NAME, FAULTS, Ends, Fault, Target, Way, When, codes
from bench.chaos.judge import Accused, Invariant, Printed, Seen, TrainedStep, judge, unknown
from bench.chaos.plan import LAST_STEP, STEPS, Moment, Round, draw, fault_of
from bench.chaos.playing import PREPARED, STRIKES

from allranks.diagnose.causes import CAUSES
from allranks.exitcodes import MEANINGS

UNBROKEN = {step: float(step).hex() for step in range(1, 6)}

# -- the plan ------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_rounds_each_time() -> None:
    assert [draw(16, number) for number in range(200)] == [draw(16, number) for number in range(200)]


def test_every_fault_strikes_about_as_often_as_any_other() -> None:
    for first in (0, len(FAULTS)):
        drawn = {draw(7, number).fault for number in range(first, first + len(FAULTS))}
        assert drawn == set(BY_NAME)


def test_rounds_are_within_what_was_asked_for() -> None:
    rounds = [draw(seed, number) for seed in (1, 2) for number in range(400)]
    for round_ in rounds:
        fault = fault_of(round_)
        has_spares = fault.way in (Way.SSH, Way.ELSEWHERE)
        assert 3 <= round_.hosts <= 6 and (round_.spares >= 1) == has_spares and 2 <= round_.world_size <= 6
        assert round_.rank < round_.world_size
        assert round_.peer != round_.node and round_.peer < round_.nodes
        assert fault.lasting[0] <= round_.lasting <= fault.lasting[1]
        assert (round_.node >= round_.nodes) == (fault.target is Target.SPARE)
        assert (round_.moment == Moment()) == (fault.when is When.BEFORE)
        assert round_.moment.step <= LAST_STEP < STEPS
        if fault.when is When.STEPS:
            assert round_.moment.step >= 2
    assert {round_.hosts for round_ in rounds} == {3, 4, 5, 6}
    assert {round_.preload for round_ in rounds} == {"never", "retries"}


# -- the faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_its_bound_and_is_carried_out(fault: Fault) -> None:
    assert 10 <= fault.bound <= 180 and fault.what
    strikes = {Way.SSH: STRIKES, Way.JOIN: JOIN_STRIKES, Way.SLURM: SLURM_STRIKES, Way.ELSEWHERE: AWAY_STRIKES}
    assert fault.name in strikes[fault.way]
    assert set(fault.causes) <= set(CAUSES)
    for on_hang in ("stop", "restart"):
        for is_started in (True, False):
            assert codes(fault, is_started, on_hang) <= set(MEANINGS)


def test_nothing_is_carried_out_that_has_no_row() -> None:
    assert {*STRIKES, *JOIN_STRIKES, *SLURM_STRIKES, *AWAY_STRIKES} == set(BY_NAME) and len(BY_NAME) == len(FAULTS)
    assert set(PREPARED) <= set(BY_NAME)


def test_what_must_go_on_ends_with_0_once_ranks_train() -> None:
    for fault in FAULTS:
        right = codes(fault, True, "restart")
        if fault.ends in (Ends.SURVIVES, Ends.RETRIED, Ends.HANGS):
            assert right == {0}
        elif fault.ends is not Ends.EITHER:
            assert 0 not in right
    assert codes(BY_NAME["sleep"], True, "stop") == {5}


def test_the_failure_model_names_faults_and_tests_that_there_are() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/explanation/failure-model.md").read_text()
    rows = re.findall(r"^\| .* \| (.*`test_.*) \|(.*)\|$", page, re.M)
    assert len(rows) > 9
    sources = "".join(path.read_text() for path in (root / "tests").rglob("test_*.py"))
    for tests, faults in rows:
        assert [name for name in re.findall(r"`(\w+)`", tests) if f"def {name}(" not in sources] == []
        assert set(re.findall(r"`([a-z-]+)`", faults)) <= set(BY_NAME)


# -- the judge -----------------------------------------------------------------------------------------


def round_of(fault: str, **changes: object) -> Round:
    """A round with this fault at rank 2 on h3."""
    number = next(number for number in range(len(FAULTS)) if draw(1, number).fault == fault)
    drawn = draw(1, number)._replace(hosts=4, nproc=1, spares=1, rank=2, node=2, peer=0, moment=Moment(step=20))
    return drawn._replace(**changes)  # type: ignore[arg-type]


def right() -> Seen:
    """What a rank that was killed must come to."""
    trained = ((0, 1), (0, 2), (0, 3), (1, 3), (1, 4), (1, 5))
    return Seen(
        code=0, seconds=20.0, load=1.0, cores=2, is_hit=True, steps_before=True, attempts=2, first_steps={1: 3},
        accused=(Accused("rank-killed", ("h3",), (2,), "rank 2 on h3 was killed"),),
        printed=(Printed("h3", 0, 2, 4, (0, 1, 2, 3)), Printed("h4", 1, 2, 2, (0, 1, 2))),
        trained=tuple(TrainedStep(attempt, step, UNBROKEN[step]) for attempt, step in trained),
    )  # fmt: skip


def broken(seen: Seen, fault: str = "kill-rank") -> set[Invariant]:
    """Which invariants did not hold."""
    return {breach.invariant for breach in judge(round_of(fault), seen, UNBROKEN)}


def test_a_round_that_went_as_it_must_has_no_breach() -> None:
    assert judge(round_of("kill-rank"), right(), UNBROKEN) == []
    assert not unknown(round_of("kill-rank"), right())


def seeing(**changes: object) -> Callable[[Seen], Seen]:
    return lambda seen: seen._replace(**changes)  # type: ignore[arg-type]


def accusing(cause: str, nodes: tuple[str, ...], ranks: tuple[int, ...]) -> Callable[[Seen], Seen]:
    return seeing(accused=(Accused(cause, nodes, ranks, "a verdict"),))


def printing(*lines: int, last: int = 4) -> Callable[[Seen], Seen]:
    """Rank 2 on h3 has printed up to the last line, and these came."""
    return seeing(printed=(Printed("h3", 0, 2, last, lines),))


BROKEN: dict[str, tuple[Invariant, Callable[[Seen], Seen]]] = {
    "not over": (Invariant.BOUND, seeing(code=None, seconds=500.0)),
    "late": (Invariant.BOUND, seeing(seconds=BY_NAME["kill-rank"].bound + 1)),
    "another code": (Invariant.CODE, seeing(code=4)),
    "another rank": (Invariant.CULPRIT, accusing("rank-killed", ("h1",), (0,))),
    "another rank of the node": (Invariant.CULPRIT, accusing("rank-killed", ("h3",), (0,))),
    "another node": (Invariant.CULPRIT, accusing("node-network-down", ("h1",), ())),
    "no verdict": (Invariant.CULPRIT, seeing(accused=())),
    "another cause": (Invariant.CAUSE, accusing("segfault-native", ("h3",), (2,))),
    "a process is left": (Invariant.PROCESSES, seeing(left=("python train.py",))),
    "a line is lost": (Invariant.LINES, printing(0, 1, 3)),
    "the end is lost": (Invariant.LINES, printing(0, 1)),
    "a line comes twice": (Invariant.LINES, printing(0, 1, 1, 2, 3)),
    "more is lost than was dropped": (
        Invariant.LINES,
        seeing(printed=(Printed("h3", 0, 2, 900, ()),), dropped={"h3": {2: 64 * 800}}),
    ),
    "an unreadable directory": (Invariant.DIRECTORY, seeing(directory=("run.json: expected …",))),
    "an answer that was not expected": (Invariant.ORDER, seeing(out_of_order=("facts of h2",))),
    "another loss": (
        Invariant.LOSS,
        lambda seen: seen._replace(trained=(*seen.trained[:-1], TrainedStep(1, 5, 5.0000001.hex()))),
    ),
    "a step that was left out": (Invariant.LOSS, lambda seen: seen._replace(trained=seen.trained[:-1])),
    "another first step": (Invariant.RESUME, seeing(first_steps={1: 4})),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_judge_catches_each_kind_of_breach(case: str) -> None:
    invariant, break_it = BROKEN[case]
    assert broken(break_it(right())) == {invariant}


def test_each_invariant_has_a_breach_that_is_caught() -> None:
    caught = {invariant for invariant, _ in BROKEN.values()}
    assert caught | {Invariant.ATTEMPTS} == set(Invariant)


STOPPED = {"code": 143, "accused": (), "attempts": 1, "seconds": 2.0}
LATE = {"is_hit": False, "attempts": 1, "accused": (), "seconds": 900.0}


@pytest.mark.parametrize(
    ("fault", "sees", "breaches"),
    [
        ("link-flap", seeing(accused=()), {Invariant.ATTEMPTS}),  # a run that must go on may have no second attempt
        ("attach", seeing(), {Invariant.ATTEMPTS, Invariant.CULPRIT}),
        ("term", seeing(**STOPPED), set()),  # who stops a run is no culprit
        ("term", seeing(**{**STOPPED, "accused": (Accused("rank-killed", ("h1",), (0,)),)}), {Invariant.CULPRIT}),
        ("term", seeing(**{**STOPPED, "code": 0}), {Invariant.CODE}),
        ("kill-rank", accusing("unknown", ("h3",), (2,)), set()),  # not known is no wrong cause: the culprit is named
        ("kill-rank", accusing("unknown", ("h1",), (0,)), {Invariant.CULPRIT}),
        ("raise", seeing(**LATE), set()),  # a fault that came too late must change nothing
        ("raise", seeing(**{**LATE, "code": 1}), {Invariant.CODE}),
    ],
)
def test_what_is_a_breach_depends_on_the_fault(
    fault: str, sees: Callable[[Seen], Seen], breaches: set[Invariant]
) -> None:
    assert broken(sees(right()), fault) == breaches


def test_a_verdict_that_names_nobody_is_unknown_and_no_breach() -> None:
    seen = right()._replace(accused=(Accused("unknown", (), (), "nothing says why"),))
    assert judge(round_of("kill-rank"), seen, UNBROKEN) == []
    assert unknown(round_of("kill-rank"), seen)
    assert not unknown(round_of("term"), seen)


def test_lines_of_a_node_that_could_not_be_reached_or_had_no_room_are_counted_as_such() -> None:
    seen = printing(0, 1, last=9)(right())
    unreached, dropped = seen._replace(unfetched=("h3",)), seen._replace(dropped={"h3": {2: 64 * 7}})
    assert broken(unreached) == broken(dropped) == set()
    assert (unreached.unreached_lines, unreached.dropped_lines) == (7, 0)
    assert (dropped.unreached_lines, dropped.dropped_lines) == (0, 7)
    assert broken(seen._replace(unfetched=("h1",))) == {Invariant.LINES}
