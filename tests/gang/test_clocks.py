"""The gang's limits when a clock is set: the same happens at the same time, whatever the clocks of the wall say."""

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


class Situation(Drive):
    """A gang that is brought into a situation by steps, as words."""

    def __init__(self, steps: str) -> None:
        super().__init__(**LIMITS)
        for step in steps.split(", "):
            verb, *words = step.split()
            getattr(self, verb)(*words)

    def quiet(self) -> None:
        self.at += LIMITS["hang_timeout"]
        self.feed(Quiet(self.roster.last_sign_at))

    def raised(self, rank: str) -> None:
        self.feed(ReportMessage("raised", int(rank)), self.node_of(int(rank)))

    def lingers(self, rank: str, code: str = "0") -> None:
        self.feed(ReportMessage("leaving", int(rank), code=int(code), threads=("uploader",)), self.node_of(int(rank)))

    def signalled(self, node: str) -> None:
        self.feed(UserSignal("USR1", node))


RUNNING = "running, initialised 0, initialised 1, initialised 2"
SITUATIONS = {
    "gathering": "hello h0",
    "an unreachable node": "hello h0, unreachable h1",
    "listening": "gathered",
    "proving": "gathered, listening",
    "before init": "running, entered 0",
    "running": RUNNING,
    "suspected": f"{RUNNING}, quiet",
    "one has ended": f"{RUNNING}, exit 0 code=0",
    "a failed program lingers": f"{RUNNING}, raised 1, lingers 1 1",
    "a program lingers": f"{RUNNING}, lingers 1",
    "ending": f"{RUNNING}, exit 0 code=1",
    "not drained": f"{RUNNING}, exit 0 code=1, ended h0, ended h1, ended h2",
    "stopped": f"{RUNNING}, stop 20",
    "lost": f"{RUNNING}, lost h2, done h0, done h1",
    "signalled": f"{RUNNING}, signalled h1",
}


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
@pytest.mark.parametrize("steps", SITUATIONS.values(), ids=SITUATIONS)
def test_a_step_of_the_clock_changes_nothing(steps: str, step: float, of_nodes: bool) -> None:
    steady, stepped = Situation(steps), Situation(steps)
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
    drive = Situation(RUNNING)
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
