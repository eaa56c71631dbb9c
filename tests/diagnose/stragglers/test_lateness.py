"""Who is late, by how much and since when; and who is never accused."""

import random
from collections.abc import Callable

import pytest

from allranks.diagnose.stragglers.lateness import (
    ClockEstimate,
    GroupHistory,
    GroupKey,
    Straggler,
    change_point,
    find_straggler,
    lateness,
    read_steps,
)
from allranks.protocol.samples import GroupCalls, RankCalls

BASE = 1_800_000_000
KEY = GroupKey("0", 8, 0)
NODES = {rank: f"h{rank // 2}" for rank in range(8)}
CLOCKS = {rank: ClockEstimate(0.0, 0.0005) for rank in range(8)}
Delay = Callable[[int, int], float]  # of a rank at a step, seconds


def recorded(
    delay: Delay, steps: int = 80, first: int = 1, calls: int = 1, noise: float = 0.002, on_device: bool = False
) -> dict[int, RankCalls]:
    """Eight ranks whose steps of 100 ms have so many collectives; each begins when the last has come to the one
    before."""
    dice = random.Random(7)
    created: dict[int, list[int]] = {rank: [] for rank in range(8)}
    t = 0.0
    for step in range(steps):
        for call in range(calls):
            came = []
            for rank in range(8):
                own = (0.1 + delay(rank, step) if call == 0 else 0.001) + dice.uniform(0, noise)
                came.append(t + own)
                created[rank].append(round((t + own) * 1e6))
            t = max(came)
    numbers = tuple(range(first, first + steps * calls))
    kinds = tuple(f"all_reduce {100 + call}" for call in range(calls))
    kind = tuple(at % calls for at in range(steps * calls))
    return {
        rank: RankCalls(BASE, (GroupCalls("0", 8, 0, on_device, kinds, numbers, kind, tuple(of_rank)),))
        for rank, of_rank in created.items()
    }


def judge(calls: dict[int, RankCalls], clocks: dict[int, ClockEstimate] = CLOCKS) -> Straggler | None:
    history = GroupHistory()
    read = read_steps(calls, clocks)
    operation, steps = read.get(KEY, ("", []))
    history.add(steps, operation, 1000)
    return find_straggler(KEY, history, len(steps), NODES, clocks)


def test_a_rank_that_becomes_slow_is_named_with_the_time_of_the_change() -> None:
    found = judge(recorded(lambda rank, step: 0.05 if rank == 5 and step >= 40 else 0.0))
    assert found is not None and found.ranks == (5,)
    assert found.late == pytest.approx(0.05, abs=0.003)
    assert found.share == pytest.approx(0.33, abs=0.03), "50 of 150 ms"
    assert found.since_t == pytest.approx(BASE + 40 * 0.1, abs=0.3)
    assert found.before < 0.003


SOME_LATE: dict[str, tuple[Delay, tuple[int, ...], bool]] = {
    "slow from the first step": (lambda rank, step: 0.05 * (rank == 5), (5,), False),
    "two of one node": (lambda rank, step: {4: 0.05, 5: 0.045}.get(rank, 0.0) * (step >= 30), (4, 5), True),
}


@pytest.mark.parametrize("name", SOME_LATE)
def test_who_is_late_and_whether_it_began_then(name: str) -> None:
    delay, ranks, began = SOME_LATE[name]
    found = judge(recorded(delay))
    assert found is not None and (found.ranks, found.since_t is not None) == (ranks, began)


def test_one_call_of_many_in_a_step_is_enough() -> None:
    """A data loader delays the first collective of a step alone."""
    found = judge(recorded(lambda rank, step: 0.05 if rank == 2 and step >= 20 else 0.0, steps=60, calls=6))
    assert found is not None and found.ranks == (2,) and found.calls_of_step == 6
    assert found.late == pytest.approx(0.05, abs=0.004) and found.share == pytest.approx(0.32, abs=0.04)


def test_a_quota_stops_a_rank_every_third_step() -> None:
    found = judge(recorded(lambda rank, step: 0.09 if rank == 5 and step % 3 == 0 and step >= 60 else 0.0, steps=160))
    assert found is not None and (found.ranks, found.is_mean) == ((5,), True)
    assert found.late == pytest.approx(0.03, abs=0.01) and found.share == pytest.approx(0.23, abs=0.05)
    assert found.since_t == pytest.approx(BASE + 60 * 0.1, abs=0.8)


QUIET: dict[str, Delay] = {
    "nothing": lambda rank, step: 0.0,
    "rank 0 saves now and then": lambda rank, step: 2.0 if rank == 0 and step % 20 == 19 else 0.0,
    "batches differ by chance": lambda rank, step: random.Random(rank * 1000 + step).uniform(0, 0.1),
    "all become slower": lambda rank, step: 0.1 if step >= 40 else 0.0,
    "half of the ranks are slower": lambda rank, step: 0.05 if rank % 2 and step >= 40 else 0.0,
    "too little to matter": lambda rank, step: 0.004 if rank == 5 and step >= 40 else 0.0,
    "it is over": lambda rank, step: 0.05 if rank == 5 and 10 <= step < 20 else 0.0,
}


@pytest.mark.parametrize("name", QUIET)
def test_nobody_is_accused(name: str) -> None:
    assert judge(recorded(QUIET[name])) is None


def test_a_clock_that_is_not_known_well_enough_accuses_nobody() -> None:
    calls = recorded(lambda rank, step: 0.05 if rank == 5 and step >= 40 else 0.0)
    assert judge(calls, {**CLOCKS, 5: ClockEstimate(0.0, 0.03)}) is None


def test_offsets_of_clocks_are_taken_out() -> None:
    clocks = {**CLOCKS, 3: ClockEstimate(7.5, 0.0005)}
    calls = recorded(lambda rank, step: 0.0)
    ahead = calls[3]._replace(base=BASE + 7)  # and half a second in its numbers
    one = ahead.groups[0]
    calls[3] = ahead._replace(groups=(one._replace(created=tuple(t + 500_000 for t in one.created)),))
    assert judge(calls, clocks) is None
    wrong = judge(calls)
    assert wrong is not None and wrong.ranks == (3,)


def test_few_steps_are_not_judged() -> None:
    assert judge(recorded(lambda rank, step: 0.05 if rank == 5 else 0.0, steps=12)) is None


def test_queueing_on_a_device_is_no_arrival() -> None:
    """NCCL: a rank that queues early or late may have a device that is busy all the same."""
    calls = recorded(lambda rank, step: 0.05 if rank == 5 else 0.0, on_device=True)
    assert read_steps(calls, CLOCKS) == {}


def timed(calls: dict[int, RankCalls], ahead: float = 0.0) -> dict[int, RankCalls]:
    """The same as a device measures it: each was in a collective from when it came there until 2 ms after the last.
    All but rank 5 had queued it `ahead` seconds before their devices came to it."""
    came = {rank: of_rank.groups[0].created for rank, of_rank in calls.items()}
    ends = [max(times) + 2000 for times in zip(*came.values(), strict=True)]
    found = {}
    for rank, of_rank in calls.items():
        one = of_rank.groups[0]
        stays = tuple(end - t for end, t in zip(ends, came[rank], strict=True))
        queued = tuple(t - round(ahead * 1e6) * (rank != 5) for t in came[rank])
        found[rank] = of_rank._replace(groups=(one._replace(created=queued, duration=stays),))
    return found


@pytest.mark.parametrize("ahead", [0.0, 0.7])
def test_on_a_device_a_rank_is_late_by_what_others_have_waited(ahead: float) -> None:
    """Ranks that queue far ahead of their devices are no earlier for it."""
    calls = recorded(lambda rank, step: 0.05 if rank == 5 and step >= 40 else 0.0, calls=3, on_device=True)
    found = judge(timed(calls, ahead))
    assert found is not None and found.ranks == (5,)
    assert found.late == pytest.approx(0.05, abs=0.004)
    assert found.since_t == pytest.approx(BASE + 40 * 0.1, abs=0.3)


def test_a_device_that_still_is_in_a_collective_says_nothing_of_it() -> None:
    calls = timed(recorded(lambda rank, step: 0.05 if rank == 5 and step >= 30 else 0.0, on_device=True))
    one = calls[2].groups[0]
    calls[2] = calls[2]._replace(groups=(one._replace(duration=(*one.duration[:-7], *[0] * 7)),))
    (_, steps) = read_steps(calls, CLOCKS)[KEY]
    assert steps[-1].sequence == 80 - 7 - 1
    assert judge(calls) is not None


def test_steps_that_took_no_time_have_no_straggler() -> None:
    """The clock of every node was set back between them."""
    calls = recorded(lambda rank, step: 0.05 if rank == 5 else 0.0)
    history = GroupHistory()
    operation, steps = read_steps(calls, CLOCKS)[KEY]
    history.add([step._replace(seconds=-step.seconds) for step in steps], operation, 1000)
    assert find_straggler(KEY, history, len(steps), NODES, CLOCKS) is None
    assert judge(calls) is not None


def test_ranks_that_have_other_calls_are_compared_where_both_have_them() -> None:
    calls = recorded(lambda rank, step: 0.0, steps=60)
    one = calls[1].groups[0]
    late = one._replace(sequence=one.sequence[30:], kind=one.kind[30:], created=one.created[30:])
    calls[1] = calls[1]._replace(groups=(late,))
    (_, steps) = read_steps(calls, CLOCKS)[KEY]
    assert steps[0].sequence == 31
    assert set(lateness(steps)) == set(range(8))


def test_lists_of_different_lengths_are_left_out() -> None:
    calls = recorded(lambda rank, step: 0.0)
    one = calls[0].groups[0]
    calls[0] = calls[0]._replace(groups=(one._replace(created=one.created[:-1]),))
    (_, steps) = read_steps(calls, CLOCKS)[KEY]
    assert 0 not in steps[0].late and 1 in steps[0].late


def test_a_long_history_keeps_its_beginning() -> None:
    history = GroupHistory()
    for first in range(1, 2000, 80):
        _, steps = read_steps(recorded(lambda rank, step: 0.0, first=first), CLOCKS)[KEY]
        history.add(steps, "all_reduce", 200)
    assert len(history.steps) <= 200
    numbers = [step.sequence for step in history.steps]
    assert numbers == sorted(set(numbers)) and numbers[0] < 100 and numbers[-1] > 1900


@pytest.mark.parametrize(("values", "at"), [([1.0] * 20 + [5.0] * 20, 20), ([1.0, 2.0] * 20, None), ([], None)])
def test_the_place_of_a_change(values: list[float], at: int | None) -> None:
    dice = random.Random(1)
    assert change_point([value + dice.uniform(0, 0.1) for value in values]) == at
