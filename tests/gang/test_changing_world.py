"""A run with --nodes MIN:MAX goes on with the nodes that are there: scripts as in test_gang.py."""

from dataclasses import replace

import pytest
from tests.gang.test_gang import Drive
from tests.gang.test_spares import lost

from allranks.cluster import Node
from allranks.findings import Finding, Verdict, Where
from allranks.gang.changing_world import SETTLES
from allranks.gang.policy import Decision, Means, Tried, decide
from allranks.gang.states import NodeListed, State
from allranks.protocol.foreign import ReportMessage

OUT = Decision("retry", leave_out=("h1",), why_out="it is lost")


def changing(count: int = 3, **spec: object) -> Drive:
    return Drive(count, **{"nodes": count, "min_nodes": 2, "gather_timeout": 30.0, **spec})


def shrunk(**spec: object) -> Drive:
    """h1 is lost, and the others go on."""
    drive = lost(changing(**spec).running(), "h1")
    drive.follow(OUT)
    return drive


def environment_of(drive: Drive, node: str) -> dict[str, str]:
    starts = [m for name, m in drive.sent if name == node and m["type"] == "start"]
    return dict(starts[-1]["ranks"][0]["env"])


def test_the_others_go_on_with_new_numbers() -> None:
    drive = lost(changing().running(), "h1")
    assert drive.follow(OUT) == ["attempt-start", "node-left", "reach>h1 in 2 s", "world", "listen>h0"]
    assert drive.names == ["h0", "h2"] and list(drive.roster.spares) == ["h1"]
    assert drive.said("world") == [{"nodes": 2, "most": 3, "world_size": 2, "former": 3}]
    drive.proved()
    environment = environment_of(drive, "h2")
    assert (environment["RANK"], environment["NODE_RANK"], environment["WORLD_SIZE"]) == ("1", "1", "2")
    assert environment["ALLRANKS_FORMER_WORLD_SIZE"] == "3"
    assert environment["ALLRANKS_MARK"] == "uid-1/node_02", "its directory stays"
    assert "ALLRANKS_FORMER_WORLD_SIZE" not in environment_of(changing().running(), "h0")


def test_the_master_can_be_the_lost_one() -> None:
    drive = lost(changing().running(), "h0")
    assert drive.follow(Decision("retry", leave_out=("h0",)))[-1] == "listen>h1"


def test_a_lost_node_is_reached_again_until_it_is_there_and_stands_by() -> None:
    drive = shrunk().running()
    assert drive.unreachable("h1") == ["reach>h1 in 2 s"]
    drive.tick("40")
    assert drive.unreachable("h1") == ["reach>h1 in 10 s"], "more and more rarely"
    incarnation = drive.roster.spares["h1"].incarnation
    assert incarnation == 3, "each agent has a directory of its own"
    assert drive.hello("h1") == ["node-ready", "setup>h1"]
    assert drive.facts("h1") == ["facts", "spare-ready"]
    assert drive.gang.world.newcomers() == ["h1"]
    assert drive.lost("h1") == ["node-left", "reach>h1 in 2 s"], "lost again: nothing ends"
    assert drive.gang.world.newcomers() == [] and drive.roster.state is State.RUNNING


def back(drive: Drive) -> Drive:
    """h1 stands by again."""
    drive.running()
    for rank in "01":
        drive.entered(rank)
        drive.initialised(rank)
    return gathered(drive, "h1")


def test_at_once_the_attempt_ends_and_all_have_a_place() -> None:
    drive = back(shrunk(regrow="now"))
    drive.tick()
    words = drive.tick(str(SETTLES))
    assert words == ["regrow", "ending", "end>h0", "end>h2"]
    for rank in "01":
        drive.exit(rank, "signal=15", expected=True)
    drive.through_the_end()
    assert drive.gang.world.has_regrown
    words = drive.follow(Decision("regrow", take_in=("h1",)))
    assert words == ["attempt-start", "node-taken-in", "world", "listen>h0"]
    assert drive.names == ["h0", "h1", "h2"], "in the order of the list"
    drive.proved()
    assert environment_of(drive, "h1")["RANK"] == "1" and environment_of(drive, "h2")["RANK"] == "2"


def test_by_default_the_ranks_save_first() -> None:
    drive = back(shrunk())
    drive.tick()
    assert drive.tick(str(SETTLES)) == ["note"], "no rank can be asked"
    assert drive.tick("60") == [], "that is said once"
    drive.feed(ReportMessage("saves", 0), "h0")
    assert drive.sent[-1][1]["type"] == "save" and not drive.gang.world.regrows


@pytest.mark.parametrize("how", ["never", "failed", "done", "stopped"])
def test_no_attempt_ends_for_newcomers(how: str) -> None:
    drive = back(shrunk(regrow="never" if how == "never" else "now"))
    drive.tick()
    if how == "never":
        assert drive.tick("600") == []
        return
    drive.tick(str(SETTLES))
    if how == "stopped":
        drive.stop()
    for rank in "01":
        drive.exit(rank, "code=0" if how == "done" else "code=1", expected=how == "stopped")
    assert not drive.gang.world.has_regrown


def test_a_host_that_is_added_to_the_list_stands_by() -> None:
    drive = changing(2, nodes=3, regrow="now").running()
    added = Node(0, "h7", "h7.example", is_local=False)
    assert drive.feed(NodeListed(added)) == ["node-added", "admit>h7"]
    assert drive.feed(NodeListed(added)) == [], "once"
    state = drive.roster.spares["h7"]
    assert (state.index, state.state) == (2, "away"), "its place in the list is behind all others"
    assert drive.unreachable("h7") == ["reach>h7 in 2 s"]
    drive.hello("h7")
    assert drive.facts("h7")[-1] == "spare-ready" and drive.gang.world.newcomers() == ["h7"]


def test_a_run_with_one_number_of_nodes_takes_no_further_host() -> None:
    assert Drive(2).running().feed(NodeListed(Node(0, "h7", "h7"))) == []


def gathered(drive: Drive, *names: str) -> Drive:
    for name in names:
        drive.hello(name)
        drive.facts(name)
    return drive


def test_a_start_waits_for_all_and_goes_on_with_enough() -> None:
    drive = gathered(changing(), "h0", "h2")
    assert drive.unreachable("h1") == ["node-awaited", "reach>h1 in 2 s"]
    drive.tick("12")
    assert drive.unreachable("h1") == ["node-awaited", "reach>h1 in 3 s"]
    assert drive.tick("20") == ["node-left", "world", "listen>h0"]
    assert drive.names == ["h0", "h2"]
    assert drive.said("node-left") == [{"node": "h1", "why": drive.said("node-awaited")[0]["message"]}]
    assert drive.said("world")[0]["former"] == 0


def test_too_few_end_the_start() -> None:
    drive = gathered(changing(), "h0")
    for name in ("h1", "h2"):
        assert drive.unreachable(name) == ["node-awaited", f"reach>{name} in 2 s"]
    assert drive.tick("31") == []
    assert drive.unreachable("h1") == ["finding"]
    drive.unreachable("h2")
    assert drive.roster.state is State.ENDING


def verdict(cause: str, node: str) -> Verdict:
    return Verdict(Finding(check=cause, status="fail", id=cause, message=cause, where=Where(node=node)), cause=cause)


NODES = {"h0": 1, "h1": 1, "h2": 1}
LOST_H1 = Tried(verdict("node-network-down", "h1"), 40, unusable_nodes=("h1",), gone=("h1",))


def test_the_loss_of_a_node_costs_no_retry_where_others_go_on() -> None:
    decision = decide([LOST_H1], Means(0, ranks=NODES, least=2))
    assert (decision.kind, decision.leave_out, dict(decision.replace)) == ("retry", ("h1",), {})
    assert "2 of 3 nodes go on" in decision.reason
    assert decide([LOST_H1], Means(0, ranks=NODES)).kind == "finish"
    assert decide([LOST_H1], Means(0, ranks=NODES, least=3)).kind == "finish"


def test_a_spare_comes_first() -> None:
    decision = decide([LOST_H1], Means(1, ranks=NODES, least=2, spares={"h3": None}))
    assert dict(decision.replace) == {"h1": "h3"} and not decision.leave_out


def test_a_node_that_stands_in_is_not_taken_in_too() -> None:
    ready = {"h3": None, "h4": None}
    decision = decide([LOST_H1], Means(1, ranks=NODES, least=2, spares=ready, newcomers=("h3", "h4")))
    assert dict(decision.replace) == {"h1": "h3"} and decision.take_in == ("h4",)


def test_the_same_node_at_the_same_step_ends_the_run() -> None:
    tried = replace(LOST_H1, left_nodes=True)
    assert decide([tried, tried], Means(3, ranks=NODES, least=2)).kind == "finish"


def test_a_failure_of_the_program_counts_and_takes_no_place() -> None:
    tried = Tried(verdict("program-exception", "h1"), 40)
    assert decide([tried], Means(3, ranks=NODES, least=2)).leave_out == ()
    assert decide([tried], Means(0, ranks=NODES, least=2)).kind == "finish"
