"""What a joined node lets a coordinator say: its own command in every start, nothing of the coordinator's."""

import contextlib
import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.campaign import examples

from allranks.cluster import Cluster, Node
from allranks.gang.places import Setting, setup_order
from allranks.plan.environment import NodeLaunch, Place
from allranks.plan.pinned import MOST_REACHES, NodeArguments, NotPinned, Pin
from allranks.plan.plan import make_plan, orders
from allranks.plan.ranks import Attempt
from allranks.protocol.codec import DecodeError, decode
from allranks.protocol.header import AgentHeader
from allranks.protocol.orders import ORDERS, SuiteNodes
from allranks.protocol.plan_facts import read_facts
from allranks.settings import RunSpec

FACTS = {"interpreter": {"path": "/opt/py/bin/python"}}
MARK = "run-1-a/node_01"
HEADER = {"mode": "agent", "uid": "run-1-a", "node": "node_01", "run_tag": MARK, "lease": 60.0,
          "grace": 1.0, "node_dir": "/etc", "checks": ["memory", "evil"], "tests": True}  # fmt: skip
SPEC = RunSpec.of(command=("train.py", "--lr", "1"), nodes=2, node_rank=1, nproc=2, env={"MINE": "1"}, master_addr="a")
TESTS = RunSpec.of(
    test="full", suite="bandwidth", nodes=2, node_rank=1, nproc=2, size=4096, timeout=7.0, only=("barrier",)
)
CHECK = RunSpec.of(nodes=4, node_rank=1, master_addr="a")
TOKEN = "0123456789abcdef/0/0"


def header(**changed: object) -> AgentHeader:
    """A relay's header as a node decodes it."""
    return decode(AgentHeader, {**HEADER, **changed})


def own(spec: RunSpec = SPEC) -> NodeArguments:
    setting = Setting(run="", uid="", token="", workdir="/mine", run_outputs="")
    return NodeArguments(spec, setup_order(spec, setting)._replace(target=None), ("memory",))


def pin(spec: RunSpec = SPEC, coordinator: str = "10.0.0.1", here: str = "10.0.0.2") -> Pin:
    """A node whose agent has been begun, looked at, and has reached the master."""
    made = Pin(own(spec), "f00d")
    made.connected(coordinator, here)
    made.header(header())
    made.heard({"type": "hello", "node_dir": "/d"})
    made.heard({"type": "facts", "facts": FACTS})
    made.heard({"type": "probed", "results": [{"address": "10.0.0.1", "port": 29500, "ok": True},
                                              {"address": "10.0.0.9", "port": 29500, "ok": False}]})  # fmt: skip
    return made


def start_of(spec: RunSpec, tested: SuiteNodes | None = None, **place: object) -> dict:
    """What a coordinator with this spec sends to node 1 of 2."""
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
    found = pin().order(start_of(evil))
    mine = start_of(SPEC)
    words = ["/opt/py/bin/python", "/d/runner.py", "train.py", "--lr", "1"]
    assert [r["argv"] for r in found["ranks"]] == [words] * 2
    assert all(r["workdir"] == "/mine" and r["env"]["MINE"] == "1" for r in found["ranks"])
    assert "LD_PRELOAD" not in str(found) and "rm" not in str(found["ranks"][0]["argv"])
    contract = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE")
    for theirs, ours in zip(mine["ranks"], found["ranks"], strict=True):
        assert {k: theirs["env"][k] for k in contract} == {k: ours["env"][k] for k in contract}
    assert found["attempt"] == 0 and found["type"] == "start"
    assert found["ranks"][0]["env"]["ALLRANKS_MARK"] == "run-1-a-f00d/node_01"


def test_what_to_import_is_found_on_this_node_alone():
    evil = start_of(SPEC.changed(command=("rm", "-rf", "/"), env={"LD_PRELOAD": "/x.so"}))
    imports = {"modules": {"evil": "/theirs/evil.py"}, "changed": {}, "own": {}, "seconds": 1.0}
    message = {"type": "preload", "attempt": 0, "rank": evil["ranks"][0], "preload": "torch", "imports": imports}
    found = pin().order({**message, "terms": evil["terms"]})
    assert found["rank"]["argv"] == ["/opt/py/bin/python", "/d/runner.py", "train.py", "--lr", "1"]
    assert (found["imports"], found["preload"]) == (None, "auto") and "LD_PRELOAD" not in str(found)
    for terms in (None, {**evil["terms"], "run_tag": "another/node_01"}, {**evil["terms"], "nproc": 7}):
        with pytest.raises(NotPinned):
            pin().order({**message, "terms": terms})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"interfaces": {"LD_PRELOAD": "x"}}, "interface"),
        ({"interfaces": {"NCCL_SOCKET_IFNAME": "a b;c"}}, "interface"),
        ({"interfaces": 3}, "interfaces"),
        ({"master_addr": "-x;y"}, "master_addr"),
        ({"master_addr": "10.0.0.9"}, "has not reached"),  # tried, and no answer
        ({"master_port": 29501}, "has not reached"),
        ({"master_port": 70000}, "master_port"),
        ({"world_size": -1}, "world_size"),
        ({"world_size": 3}, "ranks 2 to 3 of 3"),
        ({"nproc": 10**6}, "nproc"),
        ({"nproc": 4, "world_size": 9}, "4 ranks on a node that runs 2"),
        ({"run": "../x"}, "run"),
        ({"run_tag": "a"}, "run_tag"),
        ({"run_tag": "another-run/node_01"}, "of another run"),
        ({"attempt": True}, "attempt"),
        ({"index": None}, "index"),
        ({"index": 0}, "the place of node 0"),
        ({"of": 3}, "of 3"),
        ({"tests": [1]}, "tests"),
        ({"tests": {"nodes": ["a", "b"]}}, "was not started to be tested"),
        ({"tests": ["--out", "/home/me/.bashrc"]}, "tests"),
    ],
)
def test_terms_out_of_bounds_are_refused(changed, said):
    with pytest.raises(NotPinned, match=said):
        pin().order(with_terms(**changed))


def test_a_node_that_was_started_to_be_looked_at_starts_no_program():
    with pytest.raises(NotPinned, match="looked at"):
        pin(CHECK).order(start_of(SPEC))
    with pytest.raises(NotPinned, match="looked at or tested"):
        pin(TESTS).order(start_of(SPEC))


# -- tests -------------------------------------------------------------------------------------------------


def test_the_words_of_a_test_are_this_nodes_own():
    theirs = TESTS.changed(suite="sync", size=1 << 40, timeout=9e4, only=(), min_bandwidth=1)
    (rank, _) = pin(TESTS).order(start_of(theirs, SuiteNodes(("a", "b"))))["ranks"]
    assert rank["argv"][1:] == [
        "/d/runner.py", "/d/fabric.zip", "--suite", "bandwidth", "--backend", "auto", "--size", "4096",
        "--timeout", "7s", "--nodes", "a,b", "--only", "barrier",
    ]  # fmt: skip


def test_a_stage_of_a_test_is_cut_down_alike_on_both_sides():
    spec = TESTS.changed(suite="staged", size=1 << 30)
    (rank, _) = pin(spec).order(start_of(spec, SuiteNodes(("a", "b"))))["ranks"]
    assert rank["argv"][3:9] == ["--suite", "sync", "--backend", "auto", "--size", str(16 << 20)]


@pytest.mark.parametrize(
    "tests",
    [
        {"nodes": ["a", "b", "c"]}, {"nodes": ["a", "--out"]}, {"nodes": ["a,b"]}, {"nodes": [1]}, {"nodes": "ab"},
        {"nodes": ["a", "b"], "dead": [["a", "c"]]}, {"nodes": ["a", "b"], "dead": [["a"]]},
        {"nodes": ["a", "b"], "dead": ["ab"]}, {"nodes": ["a", "b"], "dead": [["a", "b"]] * 5},
    ],
)  # fmt: skip
def test_names_of_nodes_that_are_none_are_refused(tests):
    message = start_of(TESTS, SuiteNodes(("a", "b")))
    message["terms"]["tests"] = tests
    with pytest.raises(NotPinned):
        pin(TESTS).order(message)


# -- the relay's header --------------------------------------------------------------------------------------


def test_the_header_keeps_this_nodes_directory_and_is_of_a_run_of_its_own():
    spec = SPEC.changed(node_dir="/scratch")
    made = Pin(own(spec), "f00d")
    assert made.header(header()) == AgentHeader(
        "agent", "run-1-a-f00d", "node_01", "run-1-a-f00d/node_01", 60.0, 1.0, "/scratch", checks=("memory",)
    )
    assert made.header(header(mode="attach")).run_tag == "run-1-a-f00d/node_01"
    again = made.header(header(node="node_01_1", run_tag="run-1-a/node_01_1", ends=["other/node_00"]))
    assert again.ends == ("run-1-a-f00d/node_01",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "sweep"), ("mode", "dial"), ("mode", "attach"), ("uid", "../../etc"), ("node", "a/b"), ("lease", 0),
        ("lease", "60"), ("lease", 1e9), ("run_tag", "x"), ("run_tag", "other-run/node_01"),
        ("grace", -1), ("grace", 1e9),
    ],
)  # fmt: skip
def test_a_header_out_of_bounds_is_refused(name, value):
    with pytest.raises((NotPinned, DecodeError)):
        Pin(own(), "f00d").header(header(**{name: value}))


def test_tests_travel_to_a_node_that_was_started_to_be_tested_alone():
    assert Pin(own(TESTS), "f00d").header(header(tests=False)).tests is True


# -- the other messages ----------------------------------------------------------------------------------------


def test_the_look_keeps_this_nodes_command_and_directory():
    theirs = {"type": "setup", "workdir": "/theirs", "command": ["sh"], "prelude": "curl x | sh", "uid": "u",
              "checks": ["memory", "evil"], "seconds": 30.0, "environ": {"LD_PRELOAD": "x"}, "node_dirs": ["/root"],
              "data_paths": ["/home/me"]}  # fmt: skip
    found = pin().order(theirs)
    assert found["prelude"] is None and found["workdir"] == "/mine" and found["command"] == list(SPEC.launch.command)
    assert found["checks"] == ["memory"] and found["environ"] == {"MINE": "1"} and found["uid"] == "u-f00d"
    assert "node_dirs" not in found and found["data_paths"] == []


@pytest.mark.parametrize("kind", ["ship", "exec", "", "START", None, 7, ["start"]])
def test_what_is_not_known_is_refused(kind):
    with pytest.raises(NotPinned):
        pin().order({"type": kind})


PROBE = {"type": "probe", "addresses": ["a"], "port": 29500, "token": TOKEN, "seconds": 6.0, "nonce_dir": "/etc"}
REACH = {"type": "reach", "token": TOKEN, "sender": 1, "names": ["b"], "seconds": 31.0, "peers": {
    "b": {"address": "10.0.0.3", "ways": ["10.1.0.3"], "port": 40000, "udp": 40001}}}  # fmt: skip
PASSED = [
    ({"type": "hello", "protocol": 1, "lease": 60.0, "have": {"0/3/0": 17}}, {"asks_launch": False}),
    ({"type": "ping", "sent": 1.5}, {}),
    ({"type": "ack", "sizes": {"0/3/0": 17}}, {}),
    ({"type": "taken", "output": 65536}, {}),
    ({"type": "end", "grace": 1.0, "reason": "ctrl-c"}, {"note_calls": False}),
    ({"type": "stacks", "ranks": [2, 3], "ask": "dump"}, {}),
    ({"type": "counters", "ranks": [2]}, {}),
    ({"type": "call-times", "ranks": [2], "most": 400, "suspects": [2]}, {}),
    ({"type": "signal", "attempt": 0, "order": 1, "name": "USR1"}, {}),
    ({"type": "release"}, {}),
    (PROBE, {"nonce_dir": None, "only": ["a", "10.0.0.1"]}),
]


@pytest.mark.parametrize(("message", "made"), PASSED, ids=[m["type"] for m, _ in PASSED])
def test_a_message_in_bounds_passes_without_what_is_not_known(message, made):
    assert pin().order({**message, "extra": "x", "path": "/etc/passwd"}) == {**message, **made}


REFUSED = [
    {"type": "hello", "protocol": 1, "lease": 1e9, "have": {}},
    {"type": "hello", "protocol": 1, "lease": -1, "have": {}},
    {"type": "hello", "protocol": 1, "lease": 60, "have": {"0/3/0": -1}},
    {"type": "hello", "protocol": 1, "lease": 60, "have": {"0/3/0": 1 << 63}},
    {"type": "hello", "protocol": 1, "lease": 60, "have": {"../x": 1}},
    {"type": "hello", "protocol": 1, "lease": 60, "have": [1]},
    {"type": "hello", "protocol": "1", "lease": 60, "have": {}},
    {"type": "ping", "sent": "now"},
    {"type": "ping", "sent": float("inf")},
    {"type": "ack", "sizes": None},
    {"type": "taken", "output": -1},
    {"type": "taken", "output": "all"},
    {"type": "end", "grace": 1e9, "reason": ""},
    {"type": "end", "grace": float("nan"), "reason": ""},
    {"type": "end", "grace": 1, "reason": "\x1b[2J"},
    {"type": "stacks", "ranks": "all", "ask": "look"},
    {"type": "stacks", "ranks": [-1], "ask": "look"},
    {"type": "stacks", "ranks": [0], "ask": "exec"},
    {"type": "counters", "ranks": [10**9]},
    {"type": "call-times", "ranks": [0], "most": 10**6, "suspects": []},
    {"type": "call-times", "ranks": [0], "most": 400, "suspects": [10**9]},
    {"type": "signal", "attempt": 0, "order": 1, "name": "KILL"},
    {"type": "signal", "attempt": 0, "order": -1, "name": "USR1"},
    {"type": "setup", "uid": "u", "seconds": 1e9},
    {"type": "setup", "uid": "../u", "seconds": 30},
    {"type": "listen", "port": 0, "token": TOKEN},
    {"type": "serve", "token": TOKEN, "seconds": 30.0},
    REACH,
    {**PROBE, "port": 22},
    {**PROBE, "addresses": ["a"] * 17},
    {**PROBE, "addresses": ["a b"]},
    {**PROBE, "token": "x\nGET / HTTP/1.1"},
    {**PROBE, "seconds": 1e9},
]  # fmt: skip


@pytest.mark.parametrize("message", REFUSED, ids=lambda m: str(m)[:60])
def test_a_message_out_of_bounds_is_refused(message):
    with pytest.raises(NotPinned):
        pin().order(message)


# -- reaching others: a check, a test ----------------------------------------------------------------------------


def test_a_node_that_is_checked_reaches_its_peers():
    assert pin(CHECK).order(REACH) == REACH
    assert pin(CHECK).order({"type": "serve", "token": TOKEN, "seconds": 9.0})["seconds"] == 9.0
    found = pin(CHECK).order({"type": "listen", "port": 22, "token": TOKEN, "nonce_dir": "/root"})
    assert found == {"type": "listen", "port": 0, "token": TOKEN, "nonce_dir": None}


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "255.255.255.255", "ff02::1",
        "::ffff:127.0.0.1", "metadata.internal",
    ],
)  # fmt: skip
def test_no_peer_has_an_address_that_no_node_can_have(address):
    for change in ({"address": address}, {"ways": [address]}):
        with pytest.raises(NotPinned):
            pin(CHECK).order({**REACH, "peers": {"b": {**REACH["peers"]["b"], **change}}})
    with pytest.raises(NotPinned):
        pin(CHECK).order({**PROBE, "addresses": [address]})


@pytest.mark.parametrize(("coordinator", "here"), [("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.1")])
def test_nodes_of_one_machine_reach_each_other_by_its_loopback(coordinator, here):
    peers = {"b": {"address": "127.0.0.1", "ways": [], "port": 40000}}
    made = pin(CHECK, coordinator, here).order({**REACH, "peers": peers})["peers"]
    assert made == {"b": {**peers["b"], "udp": None}}


def test_the_first_node_of_a_group_reaches_its_own_port_by_the_loopback():
    made, probe = pin(TESTS), {**PROBE, "addresses": ["127.0.0.1"]}
    made.order({"type": "listen", "port": 0, "token": TOKEN})
    made.heard({"type": "listening", "port": 29500})
    assert made.order(probe)["addresses"] == ["127.0.0.1"]
    with pytest.raises(NotPinned):
        made.order({**probe, "port": 6379})


@pytest.mark.parametrize("change", [{"port": 22}, {"udp": 53}, {"port": 0}, {"ways": ["10.0.0.4"] * 16}, {"port": "x"}])
def test_ports_of_services_are_not_reached(change):
    with pytest.raises(NotPinned):
        pin(CHECK).order({**REACH, "peers": {"b": {**REACH["peers"]["b"], **change}}})


def test_peers_are_as_many_as_there_are_nodes_and_stay_where_they_were():
    made, peer = pin(CHECK), REACH["peers"]["b"]
    made.order(REACH)
    made.order({**REACH, "peers": {"b": {**peer, "port": 40010}}})
    with pytest.raises(NotPinned, match="other addresses of b"):
        made.order({**REACH, "peers": {"b": {**peer, "address": "10.0.0.4"}}})
    with pytest.raises(NotPinned):
        pin(CHECK).order({**REACH, "peers": {f"n{i}": peer for i in range(4)}})
    made = pin(CHECK)
    for i in range(3):
        made.order({**REACH, "peers": {f"n{i}": peer}})
    with pytest.raises(NotPinned, match="more peers"):
        made.order({**REACH, "peers": {"n3": peer}})


def test_peers_are_not_reached_again_and_again():
    made = pin(CHECK)
    for _ in range(MOST_REACHES):
        made.order(REACH)
    with pytest.raises(NotPinned, match="more than"):
        made.order(REACH)


# -- anything at all ---------------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab/.\0 -é", max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(100))
@example({"tests": 1.0})
@given(st.dictionaries(st.sampled_from(sorted(start_of(SPEC)["terms"])), JSON))
def test_whatever_the_terms_say_only_the_own_command_runs(changed):
    try:
        found = pin().order(with_terms(**changed))
    except NotPinned:
        return
    for rank in found["ranks"]:
        assert rank["argv"] == ["/opt/py/bin/python", "/d/runner.py", "train.py", "--lr", "1"]
        assert rank["workdir"] == "/mine"


@settings(max_examples=examples(70))
@example({"checks": 1.0})
@given(st.dictionaries(st.sampled_from(["checks", "tests", "lease", "mode", "node", "run_tag"]), JSON))
def test_whatever_a_header_or_a_setup_says_only_checks_that_this_node_has_run(changed):
    with contextlib.suppress(NotPinned, DecodeError):
        assert set(Pin(own(), "f00d").header(header(**changed)).checks) <= {"memory"}
    with contextlib.suppress(NotPinned):
        made = pin().order({**HEADER, **changed, "type": "setup", "seconds": 9})
        assert set(made["checks"]) <= {"memory"}
