"""Slow ranks as the gang sees them: when it asks, whom it looks at, what it says once, and when it keeps quiet."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.diagnose.hangs.test_attribute import at
from tests.diagnose.stragglers.test_lateness import BASE, Delay, recorded
from tests.diagnose.stragglers.test_reasons import USUAL, look
from tests.gang.test_gang import Drive

from allranks.gang.states import EachSecond, StepShown
from allranks.gang.stragglers import FIRST, PATIENCE
from allranks.protocol.messages import CallTimesMessage
from allranks.protocol.run_facts import Stamped
from allranks.protocol.samples import DeviceCounters, GpuCounters, LinkCount, NodeUsage, RankCalls, SuspectLook

INTERVAL = 30.0
SLEEPS = look(*[at(41)] * 5, wchan="hrtimer_nanosleep")
THROTTLED = look(*[at(41)] * 5, periods=20, throttled=18, stood=1.2)


class Watched(Drive):
    """A running gang of eight hosts with a rank each, which is asked for its collectives."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(count=8, **{"straggler_interval": INTERVAL, **spec})
        self.running()
        for rank in range(8):
            self.initialised(str(rank))
        self.step = 0
        self.seen = 0  # collectives so far

    def pace(self, seconds: float) -> list[str]:
        self.now += seconds
        self.step += 1
        return self.feed(EachSecond(self.step))

    def asked(self) -> list[tuple[str, dict[str, Any]]]:
        """The newest questions, one a node."""
        return [(node, order) for node, order in self.sent if order["type"] == "call-times"][-8:]

    def answer(
        self,
        delay: Delay,
        suspects: SuspectLook = USUAL,
        links: tuple[LinkCount, ...] = (),
        on_device: bool = False,
    ) -> list[str]:
        """All nodes answer with their newest 80 collectives. What the ledger of time gets is left out."""
        calls = recorded(delay, steps=80, first=1 + self.seen, on_device=on_device)
        calls = {rank: one._replace(base=BASE + self.seen // 10) for rank, one in calls.items()}
        self.seen += 80
        said = []
        for rank, of_rank in calls.items():
            wanted = next(order["suspects"] for node, order in self.asked() if node == f"h{rank}")
            looks = dict.fromkeys(wanted, suspects if rank == 5 else USUAL)
            self.roster.nodes[f"h{rank}"].clock.delay = 0.001
            said += self.feed(CallTimesMessage({rank: of_rank}, links if rank == 0 else (), looks), f"h{rank}")
        return [name for name in said if name != "straggler-wait"]

    def findings(self) -> list[str]:
        return [finding.message for finding in self.roster.findings]


def even(rank: int, step: int) -> float:
    return 0.0


def slow(rank: int, step: int) -> float:
    return 0.05 if rank == 5 else 0.0


def test_the_first_question_comes_early_and_healthy_runs_are_asked_less_and_less() -> None:
    drive = Watched()
    assert drive.pace(1) == []
    assert drive.pace(FIRST - 1) == []
    asked = drive.pace(1)
    assert sorted(asked) == [f"call-times>h{i}" for i in range(8)]
    assert all(order["suspects"] == [] and order["most"] == 400 for _, order in drive.asked())
    pauses = []
    for _ in range(4):
        drive.answer(even)
        began = drive.now
        while not drive.pace(1):
            assert drive.now - began < 300
        pauses.append(drive.now - began)
    assert pauses == [30, 45, 60, 60]


def first_asked() -> Watched:
    drive = Watched()
    drive.pace(1)
    drive.pace(FIRST)
    return drive


def next_look(drive: Watched) -> list[str]:
    return next(filter(None, (drive.pace(1) for _ in range(200))), [])


@pytest.fixture
def drive() -> Watched:
    """The first look was healthy, and the next has been asked for."""
    made = first_asked()
    made.answer(even)
    next_look(made)
    return made


def test_a_rank_that_becomes_late_is_looked_at_and_named_once(drive: Watched) -> None:
    asked = drive.answer(slow)
    assert len(asked) == 8, "at once again, with a look at the suspect and at a usual rank"
    suspects = {rank for _, order in drive.asked() for rank in order["suspects"]}
    assert 5 in suspects and len(suspects) == 2
    assert drive.findings() == []
    assert drive.answer(slow, SLEEPS) == ["finding"]
    (message,) = drive.findings()
    assert re.match(r"rank 5 on h5 arrives 50(\.\d)? ms late at every all_reduce since ", message)
    assert message.endswith("the other 7 ranks wait 33 % of the time. It sleeps at data.py:41 in load")
    next_look(drive)
    assert drive.answer(slow) == [], "it was said"
    status = {rank.rank: rank for node in drive.roster.nodes.values() for rank in node.status({}, {}).ranks}
    assert status[5].lateness_s == pytest.approx(0.05, abs=0.003) and status[1].lateness_s < 0.003


def test_collectives_that_a_device_does_not_time_are_said_once(drive: Watched) -> None:
    assert drive.answer(slow, on_device=True) == ["note"]
    next_look(drive)
    assert drive.answer(slow, on_device=True) == []


def test_a_slowdown_of_that_time_names_the_rank_that_became_late(drive: Watched) -> None:
    """Nothing of the nodes has changed. That a rank is late has, and a warning has said it already."""
    drive.answer(slow)
    drive.answer(slow, SLEEPS)
    changed_t = drive.gang.stragglers.late_since[5]
    assert drive.gang.stragglers.late_since_about(changed_t - 60.0, 10.0) == []
    t = changed_t - 30.0
    for step in range(140):
        t += 0.5 if t < changed_t else 1.0
        drive.gang.handle(Stamped("", t, 0, StepShown(step)), drive.at, drive.now)
    (_, message) = drive.findings()
    assert message.startswith("the run fell from 2 steps/s to 1 s a step at ")
    assert message.endswith("At that time, rank 5 on h5 began to come late to collectives")


def test_the_ledger_of_time_gets_what_ranks_wait_for_a_straggler_that_was_named(drive: Watched) -> None:
    """The spans follow one another, and before somebody was named none of the time was waiting."""
    for suspects in (USUAL, SLEEPS):
        drive.answer(slow, suspects)
        drive.answer(slow, suspects)
        next_look(drive)
    waits = drive.said("straggler-wait")
    assert [wait["since"] for wait in waits[1:]] == drive.times("straggler-wait")[:-1]
    assert waits[0]["share"] == 0.0
    assert waits[-1]["share"] == pytest.approx(0.33, abs=0.02)


def test_a_rank_whose_gpu_is_held_back_is_named_with_that_reason(drive: Watched) -> None:
    for number in range(8):
        hot = number == 5
        gpu = GpuCounters("0000:07:00.0", clock=1095 if hot else 1980, clock_max=1980, held=0x40 if hot else 0)
        gpu = gpu._replace(ranks=(number,))
        drive.feed(NodeUsage(t=drive.now, seconds=10.0, devices=DeviceCounters((gpu,))), f"h{number}")
    drive.answer(slow)
    drive.answer(slow, SLEEPS)
    (message,) = drive.findings()
    words = "Its GPU runs at 1095 MHz, the others at 1980. Heat (hardware thermal slowdown) holds it back"
    assert message.startswith("rank 5 on h5 arrives 50") and message.endswith(words)


def test_one_look_accuses_nobody(drive: Watched) -> None:
    drive.answer(slow)
    assert drive.answer(even) == [] and drive.findings() == []


def test_a_rank_that_is_late_from_the_start_does_its_work_by_design() -> None:
    """A stage of a pipeline, or rank 0 that logs: only a reason of its node makes it a straggler."""
    drive = first_asked()
    drive.answer(slow)
    assert drive.answer(slow, SLEEPS) == [] and drive.findings() == []
    next_look(drive)
    assert drive.answer(slow) == [], "and it is not looked at again"


def test_a_quota_from_the_start_is_said() -> None:
    drive = first_asked()
    drive.answer(slow)
    assert drive.answer(slow, THROTTLED) == ["finding"]
    (message,) = drive.findings()
    assert "since the start" in message and "throttled" in message


def test_a_rank_that_recovers_is_said_so_and_may_be_named_again(drive: Watched) -> None:
    drive.answer(slow)
    drive.answer(slow, SLEEPS)
    said = []
    for _ in range(2):
        next_look(drive)
        said += drive.answer(even)
    assert said == ["note"] and drive.said("note")[-1]["message"] == "rank 5 on h5 comes in time again"
    next_look(drive)
    drive.answer(slow)
    assert drive.answer(slow, THROTTLED) == ["finding"]
    assert len(drive.findings()) == 2


def test_a_node_that_does_not_answer_is_not_waited_for(drive: Watched) -> None:
    assert drive.pace(PATIENCE - 1) == []
    assert drive.pace(1) == [], "judged without answers, which is nothing"
    assert next_look(drive), "and asked again later"


@pytest.mark.parametrize("make", [lambda: Watched(straggler_interval=0.0), lambda: Watched(test="quick")])
def test_it_can_be_switched_off_and_tests_are_not_watched(make: Callable[[], Watched]) -> None:
    drive = make()
    assert not any(drive.pace(10) for _ in range(20))


def ring(busy_of_first: int, times: int) -> tuple[LinkCount, ...]:
    """Each rank has sent 200 MB a look to the next."""
    counts = []
    for rank in range(8):
        busy = busy_of_first if rank == 1 else 2_000_000
        counts.append(
            LinkCount(rank, f"10.0.0.{(rank + 1) % 8 + 1}", 200_000_000 * times, busy * times, 0, 9000 * times)
        )
    return tuple(counts)


def test_a_slow_link_is_named_after_two_looks_and_explains_ranks_at_its_ends() -> None:
    drive = first_asked()
    drive.answer(even, links=ring(20_000_000, 1))
    said = []
    for times in (2, 3, 4):
        next_look(drive)
        said.append(drive.answer(even, links=ring(20_000_000, times)))
    assert said == [[], ["finding"], []]
    (message,) = drive.findings()
    assert message.startswith("the link from h1 to h2 is slow: it carries 10 MB/s")


def test_an_answer_of_another_shape_is_nothing() -> None:
    drive = first_asked()
    for rank in range(8):
        drive.feed(CallTimesMessage({rank: RankCalls(error="no")}), f"h{rank}")
    assert drive.findings() == [] and next_look(drive)
