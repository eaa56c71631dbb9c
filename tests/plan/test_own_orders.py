"""A joined node's orders: its own command in every start, nothing of the coordinator's."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.campaign import examples

from allranks.cluster import Cluster, Node
from allranks.gang.places import RunContext, setup_order
from allranks.plan.environment import NodeLaunch, Place
from allranks.plan.own_orders import NotOurs, OwnOrders
from allranks.plan.plan import make_plan, orders
from allranks.plan.ranks import Attempt
from allranks.protocol.header import AgentHeader
from allranks.protocol.orders import ORDERS, SuiteNodes, terms_alone
from allranks.protocol.plan_facts import read_facts
from allranks.settings import RunSpec

FACTS = {"interpreter": {"path": "/opt/py/bin/python"}}
MARK = "run-1-a/node_01"
SPEC = RunSpec.of(command=("train.py", "--lr", "1"), nodes=2, node_rank=1, nproc=2, env={"MINE": "1"}, master_addr="a")
TESTS = RunSpec.of(
    test="full", suite="bandwidth", nodes=2, node_rank=1, nproc=2, size=4096, timeout=7.0, only=("barrier",)
)
CHECK = RunSpec.of(nodes=4, node_rank=1, master_addr="a")
OWN = ["/opt/py/bin/python", "/d/runner.py", "train.py", "--lr", "1"]


def own(spec: RunSpec = SPEC) -> OwnOrders:
    """A node whose agent has been begun and looked at."""
    setting = RunContext(run="", uid="", token="", workdir="/mine", run_outputs="")
    made = OwnOrders(spec, setup_order(spec, setting)._replace(target=None), ("memory",))
    made.heard({"type": "hello", "node_dir": "/d"})
    made.heard({"type": "facts", "facts": FACTS})
    return made


def start_of(spec: RunSpec, tested: SuiteNodes | None = None, **place: object) -> dict:
    """What a coordinator with this spec orders node 1 of 2, all of it."""
    cluster = Cluster((Node(0, "a", "a"), Node(1, "b", "b")), "join")
    plan = make_plan(spec, cluster, {})
    where = Place(
        node_dir="/tmp/allranks-0/run-1/node_01", workdir="/theirs", output_dir="/theirs/out", outputs_here=False,
        run_tag=MARK, run="run-1",
    )  # fmt: skip
    where = dataclasses.replace(where, **place)
    attempt = Attempt(0, "10.0.0.1", 29500, tests=tested)
    return ORDERS.write(orders(NodeLaunch(spec, plan.world_size, plan.nodes[1], where, attempt, read_facts(FACTS))))


def with_terms(**changed: object) -> dict:
    message = start_of(SPEC)
    message["terms"].update(changed)
    return message


# -- start -------------------------------------------------------------------------------------------------


def test_the_start_is_made_from_this_nodes_own_arguments():
    evil = SPEC.changed(command=("rm", "-rf", "/"), env={"LD_PRELOAD": "/x.so"}, wrap="sudo")
    found = own().order(start_of(evil))
    mine = start_of(SPEC)
    assert [r["argv"] for r in found["ranks"]] == [OWN] * 2
    assert all(r["workdir"] == "/mine" and r["env"]["MINE"] == "1" for r in found["ranks"])
    assert "LD_PRELOAD" not in str(found) and "rm" not in str(found["ranks"][0]["argv"])
    contract = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE")
    for theirs, ours in zip(mine["ranks"], found["ranks"], strict=True):
        assert {k: theirs["env"][k] for k in contract} == {k: ours["env"][k] for k in contract}
    assert found["attempt"] == 0 and found["type"] == "start"
    assert found["ranks"][0]["env"]["ALLRANKS_MARK"] == MARK


def test_what_is_sent_is_enough():
    """The coordinator sends terms alone: the same order comes of them."""
    sent = ORDERS.write(terms_alone(ORDERS.read(start_of(SPEC))))
    assert sent["ranks"] == [] and "MINE" not in str(sent)
    assert own().order(sent) == own().order(start_of(SPEC))


def test_what_to_import_is_found_on_this_node_alone():
    evil = start_of(SPEC.changed(command=("rm", "-rf", "/"), env={"LD_PRELOAD": "/x.so"}))
    imports = {"modules": {"evil": "/theirs/evil.py"}, "changed": {}, "own": {}, "seconds": 1.0}
    message = {"type": "preload", "attempt": 0, "rank": evil["ranks"][0], "preload": "torch", "imports": imports}
    found = own().order({**message, "terms": evil["terms"]})
    assert found["rank"]["argv"] == OWN
    assert (found["imports"], found["preload"]) == (None, "auto") and "LD_PRELOAD" not in str(found)
    with pytest.raises(NotOurs, match="without terms"):
        own().order({**message, "terms": None})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nproc": 4, "world_size": 9}, "4 ranks on a node that runs 2"),
        ({"index": 0}, "the place of node 0 of 2 on node 1 of 2"),
        ({"of": 3}, "of 3"),
        ({"tests": {"nodes": ["a", "b"]}}, "was not started to be tested"),
    ],
)
def test_arguments_that_differ_are_a_mistake(changed, said):
    with pytest.raises(NotOurs, match=said):
        own().order(with_terms(**changed))


def test_a_node_that_was_started_to_be_looked_at_starts_no_program():
    for spec in (CHECK, TESTS):
        with pytest.raises(NotOurs, match="looked at or tested"):
            own(spec).order(start_of(SPEC))


def test_the_words_of_a_test_are_this_nodes_own():
    theirs = TESTS.changed(suite="sync", size=1 << 40, timeout=9e4, only=(), min_bandwidth=1)
    (rank, _) = own(TESTS).order(start_of(theirs, SuiteNodes(("a", "b"))))["ranks"]
    assert rank["argv"][1:] == [
        "/d/runner.py", "/d/fabric.zip", "--suite", "bandwidth", "--backend", "auto", "--size", "4096",
        "--timeout", "7s", "--nodes", "a,b", "--only", "barrier",
    ]  # fmt: skip


def test_a_stage_of_a_test_is_cut_down_alike_on_both_sides():
    spec = TESTS.changed(suite="staged", size=1 << 30)
    (rank, _) = own(spec).order(start_of(spec, SuiteNodes(("a", "b"))))["ranks"]
    assert rank["argv"][3:9] == ["--suite", "sync", "--backend", "auto", "--size", str(16 << 20)]


# -- the others --------------------------------------------------------------------------------------------


def test_the_header_keeps_this_nodes_directory_and_what_it_was_started_for():
    header = AgentHeader("agent", "run-1-a", "node_01", MARK, 60.0, 1.0, "/etc", checks=("memory", "evil"), tests=True)
    made = own(SPEC.changed(node_dir="/scratch")).header(header)
    assert made == header._replace(node_dir="/scratch", checks=("memory",), tests=False)
    assert own(TESTS).header(header._replace(tests=False)).tests is True


def test_the_look_keeps_this_nodes_command_and_directory():
    theirs = {"type": "setup", "workdir": "/theirs", "command": ["sh"], "prelude": "curl x | sh", "uid": "u",
              "checks": ["memory", "evil"], "seconds": 30.0, "environ": {"LD_PRELOAD": "x"}, "node_dirs": ["/root"],
              "data_paths": ["/home/me"]}  # fmt: skip
    found = own().order(theirs)
    assert found["prelude"] is None and found["workdir"] == "/mine" and found["command"] == list(SPEC.launch.command)
    assert found["checks"] == ["memory"] and found["environ"] == {"MINE": "1"} and found["uid"] == "u"
    assert "node_dirs" not in found and found["data_paths"] == []


def test_a_nonce_is_looked_for_in_this_nodes_own_directory():
    probe = {"type": "probe", "addresses": ["a"], "port": 29500, "token": "t/0/0", "seconds": 6.0, "nonce_dir": "/etc"}
    assert own(SPEC.changed(output_dir="/ck")).order(probe) == {**probe, "nonce_dir": "/ck"}


@pytest.mark.parametrize("kind", ["ship", "keep", "exec", "", "START", None, 7, ["start"]])
def test_neither_files_nor_what_is_not_known_are_taken(kind):
    with pytest.raises(NotOurs):
        own().order({"type": kind, "launch": {}, "sha256": "", "packed": 1, "bytes": 1, "files": 1})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab/.\0 -é", max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(100))
@example({"tests": 1.0})
@example({"master_port": "x"})
@given(st.dictionaries(st.sampled_from(sorted(start_of(SPEC)["terms"])), JSON))
def test_whatever_the_terms_say_only_the_own_command_runs(changed):
    try:
        found = own().order(with_terms(**changed))
    except NotOurs:
        return
    assert all((rank["argv"], rank["workdir"]) == (OWN, "/mine") for rank in found["ranks"])
