"""The bounds of orders, headers and control messages: at the field, for every transport."""

import pytest

from allranks.protocol.codec import DecodeError, decode
from allranks.protocol.controls import TO_COORDINATOR, TO_NODE
from allranks.protocol.header import read_header
from allranks.protocol.orders import LARGEST_STEP, ORDERS, StartTerms

TOKEN = "0123456789abcdef/0/0"
PROBE = {"type": "probe", "addresses": ["a"], "port": 29500, "token": TOKEN, "seconds": 6.0, "nonce_dir": "/etc"}
PEER = {"address": "10.0.0.3", "ways": ["10.1.0.3"], "port": 40000, "udp": 40001}
REACH = {"type": "reach", "token": TOKEN, "sender": 1, "names": ["b"], "seconds": 31.0, "peers": {"b": PEER}}
SAVE = {"type": "save", "attempt": 0, "request": 1, "phase": "asked", "step": 7, "ranks": [0]}
PASSED = [
    {"type": "hello", "protocol": 1, "lease": 60.0, "have": {"0/3/0": 17}, "asks_launch": False},
    {"type": "ping", "sent": 1.5},
    {"type": "ack", "sizes": {"0/3/0": 17}},
    {"type": "taken", "output": 65536},
    {"type": "end", "grace": 1.0, "reason": "ctrl-c", "note_calls": False},
    {"type": "stacks", "ranks": [2, 3], "ask": "dump", "asked": 1, "native": False},
    {"type": "profile", "ranks": [2], "seconds": 70.0, "number": 2, "asked": 1, "is_end": False},
    {"type": "counters", "ranks": [2]},
    {"type": "call-times", "ranks": [2], "most": 400, "suspects": [2]},
    {"type": "signal", "attempt": 0, "order": 1, "name": "USR1"},
    {"type": "release"},
    PROBE,
    REACH,
    SAVE,
]


@pytest.mark.parametrize("message", PASSED, ids=[m["type"] for m in PASSED])
def test_an_order_in_bounds_passes_without_what_is_not_known(message):
    assert ORDERS.write(ORDERS.read({**message, "extra": "x", "path": "/etc/passwd"})) == message


REFUSED = [
    {"type": "hello", "lease": 1e9},
    {"type": "hello", "lease": -1},
    {"type": "hello", "have": {"0/3/0": -1}},
    {"type": "hello", "have": {"0/3/0": 1 << 63}},
    {"type": "hello", "have": {"../x": 1}},
    {"type": "hello", "protocol": "1"},
    {"type": "ping", "sent": float("inf")},
    {"type": "ack", "sizes": None},
    {"type": "taken", "output": -1},
    {"type": "end", "grace": 1e9},
    {"type": "end", "grace": float("nan")},
    {"type": "end", "grace": 1, "reason": "\x1b[2J"},
    {"type": "stacks", "ranks": [-1]},
    {"type": "stacks", "ranks": [0] * 5000},
    {"type": "stacks", "ranks": [0], "ask": "exec"},
    {"type": "profile", "ranks": [0], "number": 0},
    {"type": "profile", "ranks": [0], "number": 10000},
    {"type": "counters", "ranks": [10**9]},
    {"type": "call-times", "ranks": [0], "most": 10**6},
    {"type": "call-times", "ranks": [0], "most": 400, "suspects": [10**9]},
    {"type": "signal", "attempt": 0, "order": 1, "name": "KILL"},
    {"type": "signal", "attempt": 0, "order": -1, "name": "USR1"},
    {"type": "signal", "attempt": 1 << 16, "order": 1, "name": "USR1"},
    {"type": "setup", "uid": "u", "seconds": 1e9},
    {"type": "setup", "uid": "../u", "seconds": 30},
    {"type": "listen", "port": 70000, "token": TOKEN},
    {**PROBE, "port": -1},
    {**PROBE, "addresses": ["a"] * 17},
    {**PROBE, "addresses": ["a b"]},
    {**PROBE, "token": "x\nGET / HTTP/1.1"},
    {**PROBE, "seconds": 1e9},
    {**REACH, "peers": {"b": {**PEER, "port": "x"}}},
    {**REACH, "peers": {"b": {**PEER, "ways": ["10.0.0.4"] * 17}}},
    {**SAVE, "phase": "exec"},
    {**SAVE, "step": LARGEST_STEP + 1},
    {"type": "start", "attempt": -1, "ranks": []},
    {"type": "start", "attempt": 0, "ranks": [], "follow": [{"kind": "exec", "rank": 0, "path": "/x"}]},
    {"type": "start", "attempt": 0, "ranks": [], "follow": [{"kind": "ras", "rank": 0, "path": "x" * 5000}]},
]  # fmt: skip


@pytest.mark.parametrize("message", REFUSED, ids=lambda m: str(m)[:60])
def test_an_order_out_of_bounds_is_refused(message):
    with pytest.raises(DecodeError):
        ORDERS.read(message)


TERMS = {
    "world_size": 2, "index": 1, "of": 2, "first_rank": 1, "nproc": 1, "attempt": 0, "repeats": 0, "run": "run-1",
    "master_addr": "10.0.0.1", "master_port": 29500, "run_tag": "run-1/node_01",
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"interfaces": {"LD_PRELOAD": "x"}}, {"interfaces": {"NCCL_SOCKET_IFNAME": "a b;c"}}, {"interfaces": 3},
        {"master_addr": "-x y"}, {"master_port": -1.5}, {"world_size": -1}, {"nproc": 10**6}, {"run": "../x"},
        {"run_tag": "a"}, {"attempt": True}, {"index": None}, {"tests": [1]}, {"tests": {"nodes": ["a", "--out"]}},
        {"tests": {"nodes": ["a,b"]}}, {"tests": {"nodes": ["a"], "dead": [["a"]]}},
    ],
)  # fmt: skip
def test_terms_out_of_bounds_are_refused(changed):
    assert decode(StartTerms, TERMS).nproc == 1
    with pytest.raises(DecodeError):
        decode(StartTerms, {**TERMS, **changed})


HEADER = {"mode": "agent", "uid": "run-1-a", "node": "node_01", "run_tag": "run-1-a/node_01", "lease": 60.0, "grace": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "exec"), ("uid", "../../etc"), ("node", "a/b"), ("lease", -1), ("lease", "60"), ("lease", 1e9),
        ("run_tag", "x"), ("grace", -1), ("grace", 1e9), ("ends", ["x"]),
    ],
)  # fmt: skip
def test_a_header_out_of_bounds_is_refused(name, value):
    assert read_header(HEADER).uid == "run-1-a"
    with pytest.raises(DecodeError):
        read_header({**HEADER, name: value})


def test_control_messages_are_bounded():
    for message in ({"type": "over", "exit": 256}, {"type": "close", "number": 1 << 32}, {"type": "open", "number": 1}):
        with pytest.raises(DecodeError):
            TO_NODE.read(message)
    for nproc in (0, 5000):
        with pytest.raises(DecodeError):
            TO_COORDINATOR.read({"type": "hello", "rank": 1, "nproc": nproc})
