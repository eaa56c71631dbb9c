"""Hangs as the gang sees them: when it looks, twice, what it then says, and when it keeps quiet."""

from __future__ import annotations

from typing import Any

from tests.unit.test_gang_machine import Drive
from tests.unit.test_hang_attribution import at, in_collective

from allranks.gang.hanging import ENDED_GRACE, GAP, PATIENCE
from allranks.gang.states import Quiet, Stacks, State

WAITS = {"text": in_collective(), "state": "S", "cpu": 1.0}
LOADS = {"text": at(41), "state": "S", "cpu": 1.0, "wchan": "hrtimer_nanosleep"}


class Hang(Drive):
    """A running gang of three hosts with a rank each, in which time passes without a sign."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(hang_timeout=60.0, **spec)
        self.running()
        for rank in ("0", "1", "2"):
            self.initialised(rank)
        self.since = self.now

    def quiet(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.feed(Quiet("", self.now, self.since))

    def answer(self, **ranks: dict[str, Any]) -> None:
        for name, found in ranks.items():
            rank = next(iter(self.gang.nodes[name].ranks))
            self.feed(Stacks(name, self.now, {rank: found}))

    def looked(self, **ranks: dict[str, Any]) -> list[str]:
        """Suspicion, two looks with the same answers, the conclusion."""
        self.quiet(60)
        self.answer(**ranks)
        self.quiet(GAP)
        self.answer(**ranks)
        return self.quiet(0.2)


def names(drive: Drive) -> list[str]:
    return list(drive.gang.nodes)


def test_the_first_look_comes_with_the_limit() -> None:
    drive = Hang()
    assert drive.quiet(59) == []
    asked = drive.quiet(1)
    assert asked[0] == "hang-suspected" and sorted(asked[1:]) == [f"stacks>h{i}" for i in range(3)]
    assert drive.last("stacks")["ranks"] == [2]


def test_a_rank_that_keeps_the_others_waiting_ends_the_gang() -> None:
    drive = Hang()
    actions = drive.looked(h0=WAITS, h1=LOADS, h2=WAITS)
    assert actions[0] == "hang" and "end>h0" in actions
    assert drive.gang.hang is not None and drive.gang.hang.culprits == (1,)
    (event,) = drive.said("hang")
    assert (event["quiet"], event["culprits"], event["cause"]) == (64.2, (1,), drive.gang.hang.cause)
    assert drive.gang.state is State.ENDING


def test_a_sign_of_life_between_the_looks_ends_the_suspicion() -> None:
    drive = Hang()
    drive.quiet(60)
    drive.answer(h0=WAITS, h1=LOADS, h2=WAITS)
    drive.since = drive.now + 1
    assert drive.quiet(GAP) == ["note"]
    assert drive.quiet(50) == [], "and the time begins anew"
    assert drive.quiet(20)[0] == "hang-suspected"


def test_a_busy_rank_is_told_of_and_left_alone() -> None:
    drive = Hang()
    drive.quiet(60)
    drive.answer(h0=WAITS, h1={**LOADS, "cpu": 10.0}, h2=WAITS)
    drive.quiet(GAP)
    drive.answer(h0=WAITS, h1={**LOADS, "cpu": 10.0 + GAP}, h2=WAITS)
    assert drive.quiet(0.2) == ["finding"]
    assert drive.gang.hang is None and drive.gang.state is State.RUNNING
    assert drive.quiet(59) == [] and drive.quiet(1)[0] == "hang-suspected"


def test_report_goes_on() -> None:
    drive = Hang(on_hang="report")
    assert drive.looked(h0=WAITS, h1=LOADS, h2=WAITS) == ["finding"]
    (finding,) = drive.said("finding")
    assert finding["where"] == {"node": "h1", "rank": 1} and "nothing has moved for 64 s" in finding["message"]
    assert drive.gang.state is State.RUNNING


def test_nobody_waits_for_others() -> None:
    drive = Hang()
    assert drive.looked(h0=LOADS, h1=LOADS, h2=LOADS) == ["note"]
    assert drive.gang.state is State.RUNNING


def test_a_node_that_does_not_answer_does_not_stop_the_looks() -> None:
    drive = Hang()
    drive.quiet(60)
    drive.answer(h0=WAITS, h2=WAITS)
    assert drive.quiet(1) == []
    assert drive.quiet(PATIENCE) == []
    asked = drive.quiet(GAP)
    assert "stacks>h1" in asked
    drive.answer(h0=WAITS, h2=WAITS)
    actions = drive.quiet(PATIENCE) + drive.quiet(0.2)
    assert "hang" in actions and drive.gang.hang is not None
    assert drive.gang.hang.culprits == (1,) and "could not be looked at" in drive.gang.hang.message


def test_a_rank_that_ended_with_0_shortens_the_wait() -> None:
    drive = Hang()
    drive.exit("2", "code=0")
    drive.since = drive.now
    assert drive.quiet(ENDED_GRACE - 1) == []
    assert drive.quiet(1)[0] == "hang-suspected"
    drive.answer(h0=WAITS, h1=WAITS)
    drive.quiet(GAP)
    drive.answer(h0=WAITS, h1=WAITS)
    assert "hang" in drive.quiet(0.2)
    assert drive.gang.hang is not None and drive.gang.hang.culprits == (2,)


def test_never() -> None:
    drive = Drive(hang_timeout=0.0).running()
    drive.now += 10**6
    assert drive.feed(Quiet("", drive.now, drive.now - 10**6)) == []


def test_the_next_attempt_begins_without_it() -> None:
    drive = Hang(retries=1)
    drive.looked(h0=WAITS, h1=LOADS, h2=WAITS)
    drive.through_the_end()
    drive.retry()
    assert drive.gang.hang is None and drive.gang.watch is None
