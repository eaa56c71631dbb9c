"""SIGUSR1 and SIGUSR2: which arrivals are one signal, and what the gang does with one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gang.test_gang import Drive, summary, taken_over

from allranks.gang.passed_signals import CONTROLLER, LATE_SECONDS, SAME_SECONDS, SignalWays
from allranks.gang.states import UserSignal

NODES = ("h0", "h1", "h2", "h3")


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        pytest.param([(0, "h0"), (0.01, "h1"), (0.02, "h2")], [True, False, False], id="all steps"),
        pytest.param([(0, ""), (0.01, "h1"), (0.02, "h0")], [True, False, False], id="batch script and all steps"),
        pytest.param([(0, "h0"), (0.01, "h0"), (0.02, "h1")], [True, False, False], id="srun repeats it"),
        pytest.param([(0, "h0"), (12, "h1")], [True, False], id="a slow slurmd"),
        pytest.param([(0, "h0"), (5, ""), (10, "")], [True, True, True], id="steps, then the script twice"),
        pytest.param([(0, ""), (5, "h0"), (5.1, "h1")], [True, True, False], id="the script, then the steps"),
        pytest.param([(0, "h0"), (0.1, "h1"), (3, "h1"), (3.1, "h0")], [True, False, True, False], id="steps twice"),
        pytest.param([(0, ""), (0.01, "")], [True, True], id="nobody repeats the controller's"),
        pytest.param([(0, "h0"), (60, "h1")], [True, True], id="a minute apart"),
    ],
)
def test_which_arrivals_are_one_signal(arrivals: list[tuple[float, str]], expected: list[bool]) -> None:
    ways = SignalWays()
    assert [ways.is_new("USR1", source, at) for at, source in arrivals] == expected


@given(
    st.lists(st.sets(st.sampled_from(("", *NODES)), min_size=1), min_size=1, max_size=5),
    st.floats(0, SAME_SECONDS * 0.9),
)
def test_each_round_is_passed_on_once(rounds: list[set[str]], spread: float) -> None:
    """Signals further apart than the ways of one can be: as many as were sent, whoever got each of them."""
    ways, passed_on = SignalWays(), 0
    for number, sources in enumerate(rounds):
        start = number * (LATE_SECONDS + SAME_SECONDS)
        for index, source in enumerate(sorted(sources)):
            passed_on += ways.is_new("USR1", source, start + spread * index / len(sources))
    assert passed_on == len(rounds)


def signalled(drive: Drive, source: str = CONTROLLER, name: str = "USR1") -> list[str]:
    return drive.feed(UserSignal(name, source))


def test_every_node_is_sent_it_once_in_order() -> None:
    drive = Drive().running()
    assert signalled(drive, "h1") == ["signal", "signal>h0", "signal>h1", "signal>h2"]
    assert signalled(drive, "h2") == []
    assert signalled(drive, "h1", "USR2") == ["signal", "signal>h0", "signal>h1", "signal>h2"]
    orders = [(m["order"], m["name"]) for n, m in drive.sent if m["type"] == "signal" and n == "h0"]
    assert orders == [(1, "USR1"), (2, "USR2")]
    assert drive.said("signal")[0] == {"signal": "SIGUSR1", "ranks": 3, "source": "h1"}


def test_ranks_that_end_still_get_it() -> None:
    drive = Drive().running()
    drive.stop()
    assert signalled(drive) == ["signal", "signal>h0", "signal>h1", "signal>h2"]


def test_before_the_ranks_run_and_after_them_nobody_gets_it() -> None:
    drive = Drive()
    assert signalled(drive) == ["note"]
    assert signalled(drive.gathered()) == ["note"]
    assert "came to the controller while no rank ran" in drive.said("note")[0]["message"]
    drive.proved()
    drive.stop("0")
    drive.through_the_end()
    assert signalled(drive) == []


def test_a_new_channel_brings_what_the_old_one_lost_and_nothing_twice() -> None:
    drive = Drive().running()
    signalled(drive)
    drive.now += 10
    signalled(drive)
    runs = summary(0, r1=None)
    assert drive.hello("h1", {**runs, "signals": 2}) == []
    assert drive.hello("h1", {**runs, "signals": 1}) == ["signal>h1"]
    assert drive.last("signal")["order"] == 2
    assert drive.hello("h1", {**runs, "signals": 0}) == ["signal>h1", "signal>h1"]


def test_the_next_attempt_begins_to_count_anew() -> None:
    drive = Drive(retries=1).running()
    signalled(drive)
    drive.again("1")
    drive.now += 10
    signalled(drive)
    assert (drive.last("signal")["attempt"], drive.last("signal")["order"]) == (1, 1)


def test_a_controller_that_took_over_goes_on_counting() -> None:
    drive = taken_over(Drive().running().notes)
    for index, name in enumerate(drive.names):
        drive.hello(name, {**summary(0, **{f"r{index}": None}), "signals": 3})
    signalled(drive)
    assert drive.last("signal")["order"] == 4
