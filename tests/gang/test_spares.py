"""Nodes that stand by, take places, and are reached again: scripts as in test_gang.py."""

import dataclasses
from typing import Any

import pytest
from tests.gang.test_gang import Drive, facts_of, play

from allranks.cluster import Cluster
from allranks.gang.ending import FENCE
from allranks.gang.plugins import built_in
from allranks.gang.states import State
from allranks.protocol.messages import FactsMessage


def standing_by(drive: Drive, spare: str) -> Drive:
    drive.hello(spare)
    drive.facts(spare)
    assert spare in drive.gang.spares.ready
    return drive


def lost(drive: Drive, node: str) -> Drive:
    """A node is lost, the others have ended, and its own agent has had its time."""
    drive.lost(node)
    for name in drive.names:
        if name != node:
            drive.ended(name)
            drive.drained(name)
    drive.tick(str(drive.spec.limits.grace + FENCE))
    assert drive.roster.state is State.OVER
    return drive


def ready(count: int = 2, spares: int = 1, retries: int = 2, **spec: Any) -> Drive:
    """Ranks run, every spare has been looked at."""
    drive = Drive(count, spares=spares, retries=retries, **spec).running()
    for name in list(drive.roster.spares):
        standing_by(drive, name)
    return drive


def test_a_spare_is_looked_at_and_waits() -> None:
    drive = play(
        """
        hello h2,h0      | node-ready setup>@
        facts h2        | facts
        hello h1        | node-ready setup>h1
        facts h0        | facts
        facts h1        | facts spare-ready listen>h0
        listening       | gate-listening probe>*
        probed h0       |
        probed h1       | gate-proved start>*
        """,
        Drive(2, spares=1),
    )
    assert drive.roster.spares["h2"].state == "spare" and drive.roster.plan is not None
    assert drive.roster.plan.world_size == 2
    assert all(node != "h2" for node, m in drive.sent if m["type"] in ("probe", "start", "listen"))


@pytest.mark.parametrize(
    "script",
    [
        "unreachable h2 | finding",
        "hello h2 | node-ready setup>h2\nfault h2 boot | finding",
        "hello h2 | node-ready setup>h2\nlost h2 | finding",
        "hello h2 | node-ready setup>h2\ndead h2 | finding",
        "hello h2 | node-ready setup>h2\nfacts h2 no_such_module | facts finding",
    ],
)
@pytest.mark.parametrize("when", ["before", "while running"])
def test_whatever_happens_to_a_spare_ends_nothing(script: str, when: str) -> None:
    drive = Drive(2, spares=1, retries=1)
    drive = drive.running() if when != "before" else drive
    state = drive.roster.state
    play(script, drive)
    assert drive.roster.state is state and not drive.gang.spares.ready
    assert [f.id for f in drive.roster.findings] == ["spare-unused"] and drive.roster.findings[0].status == "warn"


def test_a_silent_spare_is_not_ready_until_it_is_back() -> None:
    drive = ready()
    drive.silent("h2")
    assert not drive.gang.spares.ready
    assert drive.back("h2") == ["node-back", "spare-ready"]
    assert list(drive.gang.spares.ready) == ["h2"]


def test_it_takes_the_place_of_a_lost_node() -> None:
    drive = lost(ready(3), "h1")
    assert drive.retry(h1="h3") == ["attempt-start", "node-replaced", "listen>h0"]
    assert drive.names == ["h0", "h3", "h2"], "its place is its node rank"
    drive.proved()
    starts = {node: m for node, m in drive.sent if m["type"] == "start" and m["attempt"] == 1}
    assert set(starts) == {"h0", "h3", "h2"}
    environment = starts["h3"]["ranks"][0]["env"]
    assert (environment["RANK"], environment["NODE_RANK"], environment["WORLD_SIZE"]) == ("1", "1", "3")
    assert environment["ALLRANKS_MARK"] == "uid-1/node_03", "its directory is its own"
    assert drive.hello("h1") == [] and drive.ended("h1") == [], "the lost one is heard no more"
    assert drive.roster.retired["h1"].state == "lost"
    for rank in "012":
        drive.started(rank)
        drive.exit(rank, "code=0")
    assert drive.roster.state is State.ENDING


def test_a_blamed_node_that_lives_is_replaced_too() -> None:
    drive = ready()
    drive.exit("1", "code=1")
    drive.through_the_end()
    drive.retry(h1="h2")
    assert drive.roster.retired["h1"].state == "replaced" and drive.names == ["h0", "h2"]


def test_a_node_that_is_dead_at_the_start_gives_its_place() -> None:
    drive = play(
        """
        hello h2,h0      | node-ready setup>@
        unreachable h1  | finding ending end>h0
        facts h0        |
        facts h2        | facts
        done h0          | node-clean OVER
        """,
        Drive(2, spares=1, retries=1),
    )
    assert drive.roster.unusable_nodes == ("h1",) and list(drive.gang.spares.ready) == ["h2"]
    play(
        """
        hello h0        |
        listening       |
        """,
        drive,
    )
    assert drive.retry(h1="h2") == ["attempt-start", "node-replaced", "setup>h0"]
    assert drive.facts("h0") == ["facts", "listen>h0"]
    assert drive.names == ["h0", "h2"]


def test_a_first_start_is_tried_again_after_a_pause() -> None:
    """The node that was not reached is reached again; the others, which wait, are looked at once."""
    drive = play(
        """
        hello h0        | node-ready setup>h0
        unreachable h1  | finding ending end>h0
        done h0          | node-clean OVER
        """,
        Drive(2, retries=1),
    )
    words = drive.retry(pause=5.0, h1="h1")
    assert words == ["attempt-start", "node-anew", "reach>h1 in 5 s", "setup>h0"]
    play(
        """
        facts h0        | facts
        tick 4          |
        tick 2          |
        hello h1        | node-ready setup>h1
        facts h1        | facts listen>h0
        """,
        drive,
    )


def test_a_gate_that_failed_is_tried_again_after_a_pause() -> None:
    """No node is reached or looked at again: another program has the port, and may be about to end."""
    drive = Drive(2, retries=2, master_port=29533)
    for name in ("h0", "h1"):
        drive.hello(name)
        drive.facts(name)
    play("listening h0 EADDRINUSE | finding ending end>*", drive)
    play("ended h0 | node-clean\nended h1 | node-clean\ndrained h0 |\ndrained h1 | OVER", drive)
    assert drive.retry(pause=2.0) == ["attempt-start"]
    assert drive.roster.state is State.GATHERING
    assert drive.tick("1.5") == []
    assert drive.tick("1") == ["listen>h0"]
    assert drive.tick("1") == []


def test_what_a_node_says_during_a_pause_is_judged_after_it() -> None:
    """A node came back, and the start ended before it was looked at."""
    drive = Drive(2, retries=9, init_timeout=10.0).running()
    drive.roster.context = dataclasses.replace(drive.roster.context, checks=(built_in()["workdir"],))
    lost(drive, "h1").retry(h1="h1")
    assert drive.hello("h1") == ["node-ready", "setup>h1"]
    drive.tick("11")
    for name in ("h0", "h1"):
        drive.ended(name)
        drive.drained(name)
    assert drive.retry(pause=5.0) == ["attempt-start", "setup>h1"]
    lacking = facts_of(1, workdir={"path": "/work", "exists": False})
    assert drive.feed(FactsMessage(lacking), "h1") == ["facts"]
    assert drive.tick("6")[:3] == ["looked", "finding", "ending"]
    assert drive.roster.findings[0].where.node == "h1"


def port_taken(**spec: Any) -> Drive:
    """One node, and its first start is over: another program has the port that the user named."""
    drive = Drive(1, retries=2, master_port=29533, **spec)
    drive.hello("h0")
    drive.facts("h0")
    drive.listening("h0", "EADDRINUSE")
    drive.ended("h0")
    assert drive.drained("h0") == ["OVER"]
    return drive


def test_a_pause_does_not_count_for_the_init_timeout() -> None:
    drive = port_taken(init_timeout=10.0)
    drive.retry(pause=30.0)
    assert drive.tick("29") == []
    assert drive.tick("2") == ["listen>h0"]
    assert not drive.roster.init_timeout_hit
    drive.tick("11")
    assert drive.roster.init_timeout_hit


def test_a_stop_ends_a_pause() -> None:
    drive = port_taken()
    drive.retry(pause=30.0)
    assert drive.stop() == ["ending", "end>h0"]
    assert drive.roster.stop_reason == "ctrl-c"


def test_the_fence_before_a_lost_nodes_ranks_start_elsewhere() -> None:
    """A cut host's agent ends its ranks when its lease is over: only then two ranks 1 cannot meet."""
    drive = ready()
    drive.lost("h1")
    drive.ended("h0")
    drive.drained("h0")
    assert drive.roster.state is State.ENDING
    drive.tick(str(drive.spec.limits.grace + FENCE - 0.5))
    assert drive.roster.state is State.ENDING
    drive.tick("0.6")
    assert drive.roster.state is State.OVER
    drive = Drive(2).running()  # without retries no node waits
    drive.lost("h1")
    drive.ended("h0")
    drive.drained("h0")
    assert drive.roster.state is State.OVER


def test_without_a_spare_the_node_is_reached_anew() -> None:
    drive = lost(ready(spares=0), "h1")
    assert drive.retry(h1="h1") == ["attempt-start", "finding", "node-anew", "reach>h1"]
    assert drive.roster.state is State.GATHERING
    assert [f.id for f in drive.roster.findings] == ["logs-cut"]
    play(
        """
        hello h1        | node-ready setup>h1
        facts h1        | facts listen>h0
        listening       | gate-listening probe>*
        probed h0       |
        probed h1       | gate-proved start>*
        """,
        drive,
    )
    start = drive.last("start")
    assert start["ranks"][0]["env"]["ALLRANKS_MARK"] == "uid-1/node_01_1", "a further agent has its own directory"


def test_a_lost_node_is_waited_for_within_one_attempt() -> None:
    """A host that reboots is away for minutes: no retry goes by meanwhile, and no time of --init-timeout."""
    drive = lost(ready(spares=0, node_wait=300.0, init_timeout=30.0), "h1")
    drive.retry(h1="h1")
    assert drive.unreachable("h1") == ["node-awaited", "reach>h1 in 2 s"]
    drive.tick("100")
    assert drive.unreachable("h1") == ["node-awaited", "reach>h1 in 15 s"]
    drive.tick("40")
    play("hello h1 | node-ready setup>h1\nfacts h1 | facts listen>h0\nlistening | gate-listening probe>*", drive)
    assert drive.roster.attempt == 1


def test_a_lost_node_that_stays_away_ends_the_attempt() -> None:
    drive = lost(ready(spares=0, node_wait=300.0), "h1")
    drive.retry(h1="h1")
    drive.tick("299")
    assert drive.unreachable("h1") == ["node-awaited", "reach>h1 in 1 s"]
    drive.tick("1")
    play("unreachable h1 | finding ending end>h0\nended h0 | node-clean\ndrained h0 | OVER", drive)
    assert drive.roster.nodes["h1"].is_away


def test_a_node_that_comes_back_smaller_is_refused() -> None:
    drive = Drive(2, nproc=None, retries=1)
    gpus = {"gpus": {"count": 4, "source": "nvidia-smi"}}
    for name in drive.names:
        drive.hello(name)
        drive.feed(FactsMessage({**facts_of(int(name[1:])), **gpus}), name)
    drive.running()
    assert drive.roster.plan is not None and drive.roster.plan.world_size == 8
    lost(drive, "h1").retry(h1="h1")
    drive.hello("h1")
    drive.feed(FactsMessage({**facts_of(1), "gpus": {"count": 3}}), "h1")
    assert drive.roster.state is State.ENDING
    finding = drive.roster.findings[-1]
    assert finding.message == "h1 has room for 3 ranks now, and had 4" and "ssh h1" in finding.remedy


def test_a_spare_with_fewer_slots_takes_no_place() -> None:
    drive = Drive(2, nproc=None, spares=1)
    cluster = drive.roster.cluster
    slots = [dataclasses.replace(n, slots=2) for n in cluster.nodes]
    drive.roster.cluster = Cluster(tuple(slots), "test", (dataclasses.replace(cluster.spares[0], slots=1),))
    drive.running()
    drive.hello("h2")
    assert drive.facts("h2") == ["facts", "finding"]
    assert "room for 1 rank, and every node runs 2 or more" in drive.roster.findings[0].message


def test_addresses_get_their_names_among_spares_too() -> None:
    drive = Drive(2, spares=1)
    drive.roster.rename("h2", "node07")
    assert list(drive.roster.spares) == ["node07"] and drive.roster.cluster.spares[0].name == "node07"
    assert drive.roster.spares["node07"].address == "h2"
