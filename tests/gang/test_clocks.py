"""The gang's limits when a clock is set: the same happens at the same time, whatever the clocks of the wall say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.gang.test_gang import Drive
from tests.gang.test_hangwatch import LOADS, WAITS

from allranks.gang.clocks import NodeClock
from allranks.gang.states import Quiet, State, UserSignal
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import StacksMessage
from allranks.protocol.run_facts import write_line

HOUR = 3600.0
LIMITS = {"init_timeout": 60.0, "hang_timeout": 40.0, "lease": 30.0, "retries": 1}
HALF_SECONDS = 300


def gathering(drive: Drive) -> None:
    drive.hello("h0")


def an_unreachable_node(drive: Drive) -> None:
    drive.hello("h0")
    drive.unreachable("h1")


def listening(drive: Drive) -> None:
    drive.gathered()


def proving(drive: Drive) -> None:
    drive.gathered().listening()


def before_init(drive: Drive) -> None:
    drive.running().entered("0")


def running(drive: Drive) -> None:
    drive.running()
    for rank in ("0", "1", "2"):
        drive.initialised(rank)


def suspected(drive: Drive) -> None:
    running(drive)
    drive.at += LIMITS["hang_timeout"]
    drive.feed(Quiet(drive.roster.last_sign_at))


def one_has_ended(drive: Drive) -> None:
    running(drive)
    drive.exit("0", "code=0")


def a_failed_program_lingers(drive: Drive) -> None:
    running(drive)
    drive.feed(ReportMessage("raised", 1), "h1")
    drive.feed(ReportMessage("leaving", 1, code=1, threads=("uploader",)), "h1")


def a_program_lingers(drive: Drive) -> None:
    running(drive)
    drive.feed(ReportMessage("leaving", 1, threads=("uploader",)), "h1")


def ending(drive: Drive) -> None:
    running(drive)
    drive.exit("0", "code=1")


def not_drained(drive: Drive) -> None:
    ending(drive)
    for name in drive.names:
        drive.ended(name)


def stopped(drive: Drive) -> None:
    running(drive)
    drive.stop("20")


def lost(drive: Drive) -> None:
    running(drive)
    drive.lost("h2")
    for name in ("h0", "h1"):
        drive.ended(name)
        drive.drained(name)


def signalled(drive: Drive) -> None:
    running(drive)
    drive.feed(UserSignal("USR1", "h1"))


SITUATIONS = [
    gathering, an_unreachable_node, listening, proving, before_init, running, suspected, one_has_ended,
    a_failed_program_lingers, a_program_lingers, ending, not_drained, stopped, lost, signalled,
]  # fmt: skip


def afterwards(drive: Drive) -> list[tuple[int, str, list[str]]]:
    """What happens at which half second, while nodes answer what they are asked."""
    found = []
    for number in range(HALF_SECONDS):
        words = drive.tick("0.5")
        if drive.roster.state is State.RUNNING:
            words += drive.feed(Quiet(drive.roster.last_sign_at))
        if number == 20 and drive.roster.state is State.RUNNING:
            words += drive.feed(UserSignal("USR1", "h2"))
        for name in [word.partition(">")[2] for word in words if word.startswith("stacks>")]:
            rank = next(iter(drive.roster.nodes[name].ranks))
            words += drive.feed(StacksMessage({rank: LOADS if name == "h1" else WAITS}), name)
        found += [(number, drive.roster.state.value, words)] if words else []
    return found


def quiet_times(drive: Drive) -> list[object]:
    """Figures that are told of limits."""
    return [value for note in drive.notes for key, value in write_line(note).items() if key in ("quiet", "seconds")]


@pytest.mark.parametrize("of_nodes", [False, True], ids=["controller", "nodes"])
@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forwards", "backwards"])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.__name__)
def test_a_step_of_the_clock_changes_nothing(situation: Callable[[Drive], None], step: float, of_nodes: bool) -> None:
    steady, stepped = Drive(**LIMITS), Drive(**LIMITS)
    situation(steady)
    situation(stepped)
    if of_nodes:
        stepped.node_skew = step
    else:
        stepped.skew = step
    expected = afterwards(steady)
    assert expected, "the situation has a limit"
    assert afterwards(stepped) == expected
    assert quiet_times(stepped) == quiet_times(steady)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_what_is_stored_is_the_time_of_the_wall(step: float) -> None:
    drive = Drive(**LIMITS)
    running(drive)
    drive.skew = step
    drive.exit("0", "code=1")
    (failed_t,) = drive.times("failed")
    assert failed_t == drive.now and drive.roster.failed_t == drive.now
    drive.through_the_end()
    drive.retry()
    assert drive.roster.attempt_seconds(drive.at + 7) == 7


def test_the_offset_of_a_clock_that_is_set_is_found_with_the_next_round_trip() -> None:
    clock = NodeClock()
    clock.sample(100.0, 105.001, 100.002)
    assert clock.offset == pytest.approx(5.0)
    clock.sample(110.0, 115.02, 110.04)  # slower: the best one holds
    assert clock.offset == pytest.approx(5.0)
    clock.sample(120.0, 3725.02, 120.04)  # the node's clock was set
    assert clock.offset == pytest.approx(3605.0)
    clock.sample(3730.0, 3735.02, 3730.04)  # and now ours
    assert clock.offset == pytest.approx(5.0)
    clock.sample(3740.0, 3745.0, 140.0)  # ours was set while the answer came: it says nothing
    clock.sample(140.0, 3746.0, 3741.0)
    assert clock.offset == pytest.approx(5.0)
