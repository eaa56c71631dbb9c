"""Ranks whose program has ended while their process goes on: when it ends the gang, when it is only told."""

from typing import Any

from tests.gang.test_gang import Drive
from tests.gang.test_hangwatch import Hang

from allranks.gang.members import LINGER_PATIENCE as PATIENCE
from allranks.gang.members import REMARK_AFTER
from allranks.gang.states import State, Tick
from allranks.protocol.foreign import ReportMessage
from allranks.protocol.messages import ExitMessage

GRACE = 2.0


def running() -> Drive:
    return Drive(grace=GRACE).running()


def says(drive: Drive, rank: int, what: str, **facts: Any) -> list[str]:
    return drive.feed(ReportMessage(what, rank, **facts), f"h{rank}")


def later(drive: Drive, seconds: float) -> list[str]:
    drive.now += seconds
    return drive.feed(Tick())


def test_a_failure_ends_the_gang_after_grace_and_patience() -> None:
    drive = running()
    says(drive, 1, "raised")
    says(drive, 1, "leaving", code=1, threads=("uploader",))
    assert later(drive, GRACE + PATIENCE - 0.1) == []
    assert later(drive, 0.2)[0] == "ending" and drive.roster.state is State.ENDING
    assert drive.said("rank-leaving")[-1]["threads"] == ["uploader"]


def test_sys_exit_with_a_code_is_such_a_failure() -> None:
    drive = running()
    says(drive, 1, "leaving", code=3, threads=("uploader",))
    assert later(drive, GRACE + PATIENCE)[0] == "ending"
    drive.feed(ExitMessage(1, 0, code=None, signal=15, expected=True), "h1")
    assert drive.roster.program_failed and drive.roster.program_code(drive.roster.exits[0]) == 3


def test_functions_of_atexit_may_take_their_time() -> None:
    """Its threads have ended: what still runs is the program's own, and torchrun would wait for it too."""
    drive = running()
    says(drive, 1, "raised")
    says(drive, 1, "leaving", code=1, threads=("uploader",))
    says(drive, 1, "threads-ended")
    assert later(drive, 600) == []


def test_a_main_thread_that_is_gone_counts_as_ended() -> None:
    drive = running()
    says(drive, 1, "raised")
    says(drive, 1, "main-gone")
    assert later(drive, GRACE + PATIENCE)[0] == "ending"


def test_a_program_that_ended_well_goes_on_and_is_told_of_once() -> None:
    drive = running()
    for rank in (0, 2):
        says(drive, rank, "leaving", code=0, threads=("server",))
    assert later(drive, REMARK_AFTER - 1) == []
    assert later(drive, 1) == ["finding"]
    (finding,) = drive.said("finding")
    assert finding["status"] == "warn"
    assert finding["message"] == (
        "rank 0 on h0 and rank 2 on h2 have reached the end of their program, but their processes wait for threads "
        "that still run: server"
    )
    assert later(drive, 10 * REMARK_AFTER) == [] and drive.roster.state is State.RUNNING


def test_a_known_exception_ends_a_silence_without_a_look() -> None:
    """Whatever else keeps the process (a destructor of a process group): what it died of is known."""
    drive = Hang()
    says(drive, 1, "raised")
    assert drive.quiet(60)[0] == "ending"
