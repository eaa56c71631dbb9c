"""Samples are asked for once ranks run, and a run that falls behind itself is said once, as is its recovery."""

from itertools import count

import pytest
from tests.gang.test_gang import Drive

from allranks.findings import Finding
from allranks.gang.pace import EVERY, STARTING
from allranks.gang.states import Send, StepShown
from allranks.protocol.orders import UsageOrder
from allranks.protocol.run_facts import Fact, PlainNote, Stamped
from allranks.protocol.samples import DeviceCounters, GpuCounters, NodeUsage

STEPS = count()  # they only grow, over all tests


@pytest.fixture
def drive() -> Drive:
    return Drive(2).running()


def shown(drive: Drive, steps: int, seconds: float) -> list[Stamped[Fact]]:
    """So many steps of so many seconds; give the events that are not of the start."""
    said: list[Stamped[Fact]] = []
    for _ in range(steps):
        drive.at += seconds
        made = drive.gang.handle(Stamped("", drive.now, 0, StepShown(next(STEPS))), drive.at, drive.now)
        said += [action for action in made if isinstance(action, Stamped)]
    return said


def sample(drive: Drive, node: str, resent: int) -> None:
    usage = NodeUsage(t=drive.now, seconds=10.0, cores=8, tcp_sent=1000, tcp_retransmitted=resent)
    assert drive.gang.handle(Stamped(node, drive.now, 0, usage), drive.at, drive.now) == []


def test_a_slowdown_and_its_recovery_are_said_once(drive: Drive) -> None:
    for _ in range(6):
        assert shown(drive, 10, 1.0) == []
        sample(drive, "h0", 0)
        sample(drive, "h1", 0)
    said = []
    for _ in range(6):
        said += shown(drive, 4, 4.0)
        sample(drive, "h0", 0)
        sample(drive, "h1", 50)
    (made,) = said
    finding = made.fact
    assert isinstance(finding, Finding)
    assert finding.where.node == "h1"
    assert "h1: 5.0% of its TCP segments were sent again" in finding.message
    assert drive.roster.findings == [finding]
    (note,) = shown(drive, 60, 1.0)
    assert isinstance(note.fact, PlainNote)
    assert note.fact.message.startswith("the run is back at")
    assert drive.roster.nodes["h1"].usage is not None


def test_nodes_are_asked_for_samples_once_an_attempt(drive: Drive) -> None:
    drive.gang.pace.begin_attempt()
    for rank in drive.roster.ranks():
        rank.initialised_t = None
    assert drive.gang.pace.ask(drive.at) == []  # ranks start
    asked = drive.gang.pace.ask(drive.at + STARTING)
    assert asked == [Send("h0", UsageOrder(EVERY)), Send("h1", UsageOrder(EVERY))]
    assert drive.gang.pace.ask(drive.at + 2 * STARTING) == []


def test_one_switch_turns_it_off(drive: Drive) -> None:
    drive.roster.spec = drive.roster.spec.changed(straggler_interval=0.0)
    assert drive.gang.pace.ask(drive.at + STARTING) == []
    assert drive.gang.pace.ask(drive.at + 2 * STARTING) == []
    assert shown(drive, 60, 1.0) + shown(drive, 20, 5.0) == []


def test_a_fault_that_begins_in_the_run_names_the_rank_at_once_and_once(drive: Drive) -> None:
    def told(*xids: int) -> list[Stamped[Fact]]:
        gpu = GpuCounters("0000:07:00.0", xids=xids, ranks=(1,))
        usage = NodeUsage(t=drive.now, seconds=10.0, devices=DeviceCounters((gpu,)))
        made = drive.gang.handle(Stamped("h1", drive.now, 0, usage), drive.at, drive.now)
        return [action for action in made if isinstance(action, Stamped)]

    assert told() == []
    (made,) = told(79)
    assert isinstance(made.fact, Finding)
    assert made.fact.message == "GPU 0 of h1 (rank 1) has fallen off the bus (Xid 79)"
    assert (made.fact.status, made.fact.where.rank) == ("warn", 1)
    assert told(79) == []
