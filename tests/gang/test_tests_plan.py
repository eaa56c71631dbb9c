"""The collective tests as a gang's attempt: arguments, processes, what follows a quick test."""

import pytest
from tests.gang.test_gang import Drive

from allranks.cli.test import dead_pairs, without
from allranks.cluster import Cluster, Node
from allranks.plan.launchers.collectives import arguments
from allranks.protocol.orders import SuiteNodes
from allranks.settings import RunSpec

NODES = tuple(Node(i, f"h{i}", f"h{i}", None, None, None, False) for i in range(4))


def argv_of(drive: Drive) -> list[str]:
    return list(drive.last("start")["ranks"][0]["argv"])


def test_a_quick_test_goes_before_the_program_and_costs_no_attempt() -> None:
    drive = Drive(test="quick").running()
    assert argv_of(drive)[1:3] == ["/tmp/allranks-0/h2/runner.py", "/tmp/allranks-0/h2/fabric.zip"]
    assert "--quick" in argv_of(drive) and "--out none" in " ".join(argv_of(drive))
    for rank in ("0", "1", "2"):
        drive.exit(rank, "code=0")
    drive.through_the_end()
    drive.retry("train")
    drive.running()
    start = drive.last("start")
    assert start["ranks"][0]["argv"][-1] == "train.py"
    assert start["ranks"][0]["env"]["TORCHELASTIC_RESTART_COUNT"] == "0"
    drive.again("0")
    assert argv_of(drive)[-1] == "train.py", "the test is not repeated"
    assert drive.last("start")["ranks"][0]["env"]["TORCHELASTIC_RESTART_COUNT"] == "1"


@pytest.mark.parametrize("launcher", ["torchrun", "command"])
def test_a_test_has_its_own_processes_whatever_the_launcher(launcher: str) -> None:
    drive = Drive(nproc=2, launcher=launcher, test="quick").running()
    assert len(drive.last("start")["ranks"]) == 2
    for rank in range(6):
        drive.exit(str(rank), "code=0")
    drive.through_the_end()
    drive.retry("train")
    drive.running()
    assert len(drive.last("start")["ranks"]) == 1


def test_without_gpus_a_test_has_two_ranks_a_node_and_pairs_one() -> None:
    for suite, expected in (("sync", 2), ("bandwidth", 2), ("pairs", 1)):
        drive = Drive(nproc=None, test="full", suite=suite).running()
        assert len(drive.last("start")["ranks"]) == expected


def test_the_interpreter_is_looked_for_without_a_command() -> None:
    spec = RunSpec.of(test="full", suite="pairs", backend="gloo", size=1 << 20, timeout=5.0, only=("barrier",))
    assert arguments(spec, SuiteNodes(("h1", "h2"), (("h1", "h2"),))) == (
        "--suite", "pairs", "--backend", "gloo", "--size", "1048576", "--timeout", "5s", "--nodes", "h1,h2",
        "--dead", "h1/h2", "--only", "barrier",
    )  # fmt: skip


# -- dead links ----------------------------------------------------------------------------------------


def facts(*dead: tuple[str, str]) -> dict[str, dict[str, object]]:
    names = [n.name for n in NODES]
    return {a: {"pairs": {b: {"address": b, "ok": (a, b) not in dead} for b in names if b != a}} for a in names}


def test_a_pair_is_dead_where_one_way_is() -> None:
    assert dead_pairs(facts()) == set()
    assert dead_pairs(facts(("h2", "h1"), ("h0", "h3"))) == {("h1", "h2"), ("h0", "h3")}


def chosen(*dead: tuple[str, str], reached: str = "h0 h1 h2 h3") -> list[tuple[int, str]]:
    part = without(Cluster(NODES, "test"), set(reached.split()), set(dead))
    return [(n.index, n.name) for n in part.nodes]


def test_the_master_is_a_node_that_all_reach() -> None:
    assert chosen() == [(0, "h0"), (1, "h1"), (2, "h2"), (3, "h3")]
    assert chosen(("h1", "h2")) == [(0, "h0"), (1, "h1"), (2, "h2"), (3, "h3")]
    assert chosen(("h0", "h2")) == [(0, "h1"), (1, "h0"), (2, "h2"), (3, "h3")]


def test_a_node_without_links_is_left_out() -> None:
    assert chosen(("h0", "h1"), ("h0", "h2"), ("h0", "h3")) == [(0, "h1"), (1, "h2"), (2, "h3")]
    assert chosen(reached="h1 h3") == [(0, "h1"), (1, "h3")]
    assert chosen(reached="") == []
