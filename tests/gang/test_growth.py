"""What a controller does for a run of N nodes, and what reads its logs, grows as N does: counted in calls of functions.

Each of these grew as N². `python -m bench simulate` found them: with 4,096 nodes they were most of what it did.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gang.test_gang import Drive
from tests.gang.test_groups import report

from allranks.cluster import Cluster, Node
from allranks.engines.ssh import ssh_reach
from allranks.gang import session as sessions
from allranks.gang.channel import pipe_of
from allranks.protocol.codec import encode
from allranks.protocol.frames import RANK_LOG, Stream
from allranks.protocol.messages import HelloMessage
from allranks.report.live import OutputView
from allranks.runs.directory import RunDirectory
from allranks.runs.logdiagnosis import scan
from allranks.runs.logs import LogWriter
from allranks.settings import RunSpec

FEW = 60
TIMES = 4
MOST = 1.1 * TIMES  # of what FEW nodes take; N² would be 16 times


def calls_of(act: Callable[[], object]) -> int:
    """How often functions are called: each turn of a generator is one, and so is a method of a built-in type."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def calls_by_word(nodes: int) -> dict[str, int]:
    """What each kind of word took, said by every node or rank in their order, from the first hello to the end."""
    drive = Drive(count=nodes, nproc=2)
    drive.compares = False
    names = [f"h{index}" for index in range(nodes)]
    ranks = [str(rank) for rank in range(2 * nodes)]
    calls = {}

    def all_say(word: str, say: Callable[[str], object], who: list[str]) -> None:
        calls[word] = calls_of(lambda: [say(one) for one in who[:-1]])
        say(who[-1])  # the last begins the next phase, whose work is once for all

    all_say("hello", drive.hello, names)
    all_say("facts", drive.facts, names)
    drive.listening()
    calls["proof of all"] = calls_of(lambda: [drive.probed(name) for name in names])
    all_say("started", drive.started, ranks)
    all_say("initialised", lambda rank: report(drive, int(rank), "initialised", 2 * nodes), ranks)
    drive.exit("1", "code=1")
    all_say("ended", drive.ended, names)
    all_say("drained", drive.drained, names)
    assert drive.roster.state.value == "over"
    return calls


def test_the_gang_decides_about_many_nodes_as_about_few() -> None:
    few = calls_by_word(FEW)
    many = calls_by_word(TIMES * FEW)
    assert {word: calls for word, calls in many.items() if calls > MOST * few[word]} == {}


def calls_of_a_good_end(nodes: int) -> dict[str, int]:
    drive = Drive(count=nodes, nproc=2)
    drive.compares = False
    drive.running()
    ranks = [str(rank) for rank in range(2 * nodes)]
    calls = {"exits": calls_of(lambda: [drive.exit(rank, "code=0") for rank in ranks[:-1]])}
    drive.exit(ranks[-1], "code=0")
    assert drive.roster.state.value == "ending"
    drive.roster.exits = [end._replace(fact=end.fact._replace(expected=True)) for end in drive.roster.exits]  # a stop
    calls["verdict"] = calls_of(lambda: drive.roster.program_failed)
    return calls


def test_the_end_of_many_ranks_takes_as_long_for_each_as_that_of_few() -> None:
    few = calls_of_a_good_end(FEW)
    many = calls_of_a_good_end(TIMES * FEW)
    assert {word: calls for word, calls in many.items() if calls > MOST * few[word]} == {}


def greetings_of_all(place: Path, nodes: int) -> int:
    """What it takes that all nodes of a list of addresses say their names, until run.json has them."""
    listed = tuple(Node(index, f"10.0.0.{index}", f"10.0.0.{index}") for index in range(nodes))
    spec = RunSpec.of(command=("train",), hosts="hosts", nproc=1, runs_dir=str(place))
    session = sessions.create(spec, Cluster(listed, "hosts"), ssh_reach(spec), {}, str(place), OutputView)
    controller = session.controller

    def greet() -> None:
        for index, member in enumerate(list(controller.links.members.values())):
            message = HelloMessage("/tmp/node", f"h{index}")
            controller.take_frames(member, [dict(encode(message), type="hello")])
        controller.stop("stop", 0.0)  # a change of state is written

    calls = calls_of(greet)
    entries = session.run_dir.read_run().nodes
    assert [(entry.name, entry.address) for entry in entries[:2]] == [("h0", "10.0.0.0"), ("h1", "10.0.0.1")]
    session.controller.links.close()
    return calls


def test_names_of_a_list_of_addresses_are_learned_in_time_that_grows_as_it_does(tmp_path: Path) -> None:
    """run.json was read and written for each of them: 24 minutes for 4,096 nodes."""
    assert greetings_of_all(tmp_path / "many", TIMES * FEW) < MOST * greetings_of_all(tmp_path / "few", FEW)


def sizes_of_all(place: Path, nodes: int) -> int:
    run = RunDirectory.create(place, "job", 1.0)
    writer = LogWriter(run)
    for index in range(nodes):
        assert writer.write(index, f"h{index}", Stream(RANK_LOG, index, 1), 0, b"x")
    calls = calls_of(lambda: [writer.sizes(index, f"h{index}") for index in range(nodes)])
    assert writer.sizes(nodes - 1, f"h{nodes - 1}") == {f"0/{nodes - 1}/1": 1}
    writer.close()
    return calls


def test_how_much_is_here_of_a_node_is_found_without_a_look_at_the_others(tmp_path: Path) -> None:
    assert sizes_of_all(tmp_path / "many", TIMES * FEW) < MOST * sizes_of_all(tmp_path / "few", FEW)


@pytest.mark.parametrize("nodes", [1, 32, 200, 1000, 4096])
def test_what_pipes_hold_stays_below_what_a_user_may_have(nodes: int) -> None:
    assert pipe_of(nodes) >= 64 << 10
    assert pipe_of(nodes) == 64 << 10 or pipe_of(nodes) * nodes <= 32 << 20


def test_reading_of_logs_grows_as_the_number_of_ranks(tmp_path: Path) -> None:
    """The page of 1,024 nodes compared each of their 8,192 logs with each."""
    logs = [tmp_path / f"rank_{rank}.log" for rank in range(TIMES * FEW)]
    for log in logs:
        log.write_text("step 1\n")
    scan(logs)  # what is imported and compiled once
    few = calls_of(lambda: scan(logs[:FEW]))
    assert calls_of(lambda: scan(logs)) <= MOST * few
